#include "csrc/plan/border.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstring>
#include <utility>

namespace ovsw {
namespace {

using Range = std::pair<int, int>;  // taps [first, second) that lie inside the image

std::int64_t count(const Range& y, const Range& x) { return std::int64_t(y.second - y.first) * (x.second - x.first); }

// The distinct ranges along one axis, and for each output position the index of its range.
struct Axis {
  std::vector<Range> ranges;
  std::vector<std::int32_t> index;

  // Of the taps before a position, `step` pixels apart, how many.
  static int before(int pixels, int step, int window) { return std::clamp((pixels + step - 1) / step, 0, window); }

  Axis(int in, int out, int window, int stride, int pad, int gap) {
    for (int o = 0; o < out; ++o) {
      const int start = o * stride - pad;
      const Range range{before(-start, gap + 1, window), before(in - start, gap + 1, window)};
      const auto found = std::find(ranges.begin(), ranges.end(), range);
      index.push_back(std::int32_t(found - ranges.begin()));
      if (found == ranges.end()) ranges.push_back(range);
    }
  }
};

// The sums of a value per tap over any rectangle of taps, in four reads.
class TapSums {
 public:
  TapSums(int window_h, int window_w)
      : height_(std::size_t(window_h)), width_(std::size_t(window_w)), sums_((height_ + 1) * (width_ + 1), 0) {}

  // value(tap), taps counted row by row.
  template <typename Fn>
  void fill(Fn value) {
    for (std::size_t y = 0; y < height_; ++y) {
      std::int64_t row = 0;
      for (std::size_t x = 0; x < width_; ++x) {
        row += value(y * width_ + x);
        at(y + 1, x + 1) = at(y, x + 1) + row;
      }
    }
  }

  std::int64_t inside(const Range& y, const Range& x) {
    const auto corner = [&](int ky, int kx) { return at(std::size_t(ky), std::size_t(kx)); };
    return corner(y.second, x.second) - corner(y.first, x.second) - corner(y.second, x.first) +
           corner(y.first, x.first);
  }
  std::int64_t all() { return at(height_, width_); }

 private:
  std::int64_t& at(std::size_t y, std::size_t x) { return sums_[y * (width_ + 1) + x]; }

  std::size_t height_, width_;
  std::vector<std::int64_t> sums_;  // of the taps above and to the left
};

// A table whose entry for channel c and taps y, x inside is entry(c, at, y, x), `at` its place in the table; low 32
// bits count. begin(c, size of the table) is called before the entries of a channel.
template <typename Begin, typename Entry>
BorderTable make_table(const Shape& s, Begin begin, Entry entry) {
  const Axis rows(s.in_h, s.out_h, s.window_h, s.stride_h, s.pad_h, s.gap_h);
  const Axis cols(s.in_w, s.out_w, s.window_w, s.stride_w, s.pad_w, s.gap_w);
  BorderTable table;
  const int stride = padded_channels(s.out_c);
  const std::size_t size = rows.ranges.size() * cols.ranges.size() * std::size_t(stride);
  const std::size_t bytes = size * sizeof(std::int32_t);
  table.base = Buffer(bytes);
  std::memset(table.base.data(), 0, bytes);
  for (int c = 0; c < s.out_c; ++c) {
    begin(c, size);
    std::size_t at = std::size_t(c);
    for (const Range& y : rows.ranges) {
      for (const Range& x : cols.ranges) {
        table.base.as<std::int32_t>()[at] = std::int32_t(std::uint32_t(entry(c, at, y, x)));
        at += std::size_t(stride);
      }
    }
  }
  for (std::int32_t i : rows.index) table.row_class.push_back(i * std::int32_t(cols.ranges.size()));
  table.col_class = cols.index;
  return table;
}

// The terms of one binary convolution, channel by channel.
class DotTerms {
 public:
  DotTerms(const Shape& s, const std::uint64_t* weights)
      : taps_(std::int64_t(s.window_h) * s.window_w),
        channels_(s.group_in()),
        weights_(weights),
        words_((std::size_t(channels_) + 63) / 64),
        ones_(s.window_h, s.window_w) {}

  void begin(int c) {
    const std::uint64_t* channel = weights_ + std::size_t(c) * std::size_t(taps_) * words_;
    ones_.fill([&](std::size_t tap) {
      std::int64_t sum = 0;
      for (std::size_t w = 0; w < words_; ++w) {
        sum += std::int64_t(std::bitset<64>(channel[tap * words_ + w]).count());
      }
      return sum;
    });
  }
  std::int64_t base(const Range& y, const Range& x) { return inputs(y, x) + 2 * outside_ones(y, x); }
  // How many inputs lie inside, and outside.
  std::int64_t inputs(const Range& y, const Range& x) const { return channels_ * count(y, x); }
  std::int64_t outside_inputs(const Range& y, const Range& x) const { return channels_ * (taps_ - count(y, x)); }
  // The sum of the weights outside.
  std::int64_t outside(const Range& y, const Range& x) { return 2 * outside_ones(y, x) - outside_inputs(y, x); }

 private:
  std::int64_t outside_ones(const Range& y, const Range& x) { return ones_.all() - ones_.inside(y, x); }

  std::int64_t taps_, channels_;
  const std::uint64_t* weights_;
  std::size_t words_;
  TapSums ones_;
};

// The terms of a convolution on pixels: `zeros` is what the taps inside take off.
BorderTable pixel_border(const Graph& graph, const Op& op) {
  const Shape& s = op.shape;
  const std::size_t taps = op.taps(), channels = std::size_t(s.group_in());
  TapSums zeros(s.window_h, s.window_w);
  const auto begin = [&](int c, std::size_t) {
    const std::size_t first = std::size_t(c / s.group_out()) * channels;
    zeros.fill([&](std::size_t tap) {
      std::int64_t total = 0;
      for (std::size_t i = 0; i < channels; ++i) {
        total += op.int_weight((std::size_t(c) * taps + tap) * channels + i) * graph.zero(int(first + i));
      }
      return total;
    });
  };
  const auto* offset = op.constant<std::int32_t>(kOffset);
  return make_table(s, begin, [&](int c, std::size_t, const Range& y, const Range& x) {
    return offset[c] - ((zeros.inside(y, x) + 128) >> 8);
  });
}

BorderTable float_dot_border(const Op& op) {
  const double p = double(op.pad_value);
  const bool has_window = op.constant<double>(kWindow) != nullptr;
  const std::size_t stride = std::size_t(padded_channels(op.shape.out_c));
  DotTerms terms(op.shape, op.weights<std::uint64_t>());
  std::vector<double> outside, window;
  const auto begin = [&](int c, std::size_t size) {
    terms.begin(c);
    if (p != 0) outside.resize(size);
    if (has_window) window.resize(2 * (size / stride));
  };
  BorderTable table = make_table(op.shape, begin, [&](int, std::size_t at, const Range& y, const Range& x) {
    if (p != 0) outside[at] = p * double(terms.outside(y, x));
    if (has_window) {
      window[2 * (at / stride)] = -double(terms.inputs(y, x));
      window[2 * (at / stride) + 1] = p * double(terms.outside_inputs(y, x));
    }
    return terms.base(y, x);
  });
  table.outside = std::move(outside);
  table.window = std::move(window);
  return table;
}

BorderTable integer_dot_border(const Op& op) {
  const double p = double(op.pad_value);
  const auto *scale = op.constant<std::int16_t>(kScale), *window = op.constant<std::int16_t>(kWindow);
  const auto* offset = op.constant<std::int32_t>(kOffset);
  DotTerms terms(op.shape, op.weights<std::uint64_t>());
  const auto begin = [&](int c, std::size_t) { terms.begin(c); };
  return make_table(op.shape, begin, [&](int c, std::size_t, const Range& y, const Range& x) {
    const std::int64_t m = scale[c], n = window ? window[c] : 0;
    const auto outside = double(m * terms.outside(y, x) + n * terms.outside_inputs(y, x));
    return m * terms.base(y, x) - n * terms.inputs(y, x) + offset[c] + std::int64_t(std::floor(p * outside + 0.5));
  });
}

// Nothing depends on which taps are inside.
BorderTable one_class(const Op& op) {
  BorderTable table;
  const std::size_t channels = std::size_t(op.shape.out_c);
  const std::size_t bytes = std::size_t(padded_channels(op.shape.out_c)) * sizeof(std::int32_t);
  table.base = Buffer(bytes);
  std::memset(table.base.data(), 0, bytes);
  const bool wide = op.constants[kOffset] && op.constants[kOffset]->dtype == Dtype::kI32;  // that of to_float is not
  const auto* offset = wide ? op.constant<std::int32_t>(kOffset) : nullptr;
  if (offset) std::memcpy(table.base.data(), offset, channels * sizeof(std::int32_t));
  table.row_class.assign(std::size_t(op.shape.out_h), 0);
  table.col_class.assign(std::size_t(op.shape.out_w), 0);
  return table;
}

}  // namespace

BorderTable make_border(const Graph& graph, const Op& op) {
  const bool integer = graph.numerics == Numerics::kInteger;
  if (op.traits->is(kBinary)) return integer ? integer_dot_border(op) : float_dot_border(op);
  if (!integer) return {};
  return op.on_pixels ? pixel_border(graph, op) : one_class(op);
}

}  // namespace ovsw
