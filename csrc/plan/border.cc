#include "csrc/plan/border.h"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <utility>

namespace ovsw {
namespace {

using Range = std::pair<int, int>;  // kernel positions [first, second) that lie inside the image

// The distinct ranges along one axis, and for each output position the index of its range.
struct Axis {
  std::vector<Range> ranges;
  std::vector<std::int32_t> index;

  Axis(int in, int out, int kernel, int stride, int pad) {
    for (int o = 0; o < out; ++o) {
      const int start = o * stride - pad;
      const Range range{std::clamp(-start, 0, kernel), std::clamp(in - start, 0, kernel)};
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

// A table whose entry for channel c and taps y, x inside is entry(c, y, x); low 32 bits count.
// begin(c) is called before the entries of a channel.
template <typename Begin, typename Entry>
BorderTable make_table(const Shape& s, Begin begin, Entry entry) {
  const Axis rows(s.in_h, s.out_h, s.window_h, s.stride_h, s.pad_h);
  const Axis cols(s.in_w, s.out_w, s.window_w, s.stride_w, s.pad_w);
  BorderTable table;
  const int stride = padded_channels(s.out_c);
  const std::size_t bytes = rows.ranges.size() * cols.ranges.size() * std::size_t(stride) * sizeof(std::int32_t);
  table.base = Buffer(bytes);
  std::memset(table.base.data(), 0, bytes);
  for (int c = 0; c < s.out_c; ++c) {
    begin(c);
    std::int32_t* base = table.base.as<std::int32_t>() + c;
    for (const Range& y : rows.ranges) {
      for (const Range& x : cols.ranges) {
        *base = std::int32_t(std::uint32_t(entry(c, y, x)));
        base += stride;
      }
    }
  }
  for (std::int32_t i : rows.index) table.row_class.push_back(i * std::int32_t(cols.ranges.size()));
  table.col_class = cols.index;
  return table;
}

// The dots' base of one binary convolution, channel by channel.
class DotBase {
 public:
  DotBase(const Shape& s, const std::uint64_t* weights)
      : shape_(s), weights_(weights), words_((std::size_t(s.in_c) + 63) / 64), ones_(s.window_h, s.window_w) {}

  void begin(int c) {
    const std::size_t taps = std::size_t(shape_.window_h) * std::size_t(shape_.window_w);
    const std::uint64_t* channel = weights_ + std::size_t(c) * taps * words_;
    ones_.fill([&](std::size_t tap) {
      std::int64_t count = 0;
      for (std::size_t w = 0; w < words_; ++w) {
        count += std::int64_t(std::bitset<64>(channel[tap * words_ + w]).count());
      }
      return count;
    });
  }
  std::int64_t entry(const Range& y, const Range& x) {
    const std::int64_t taps = std::int64_t(y.second - y.first) * (x.second - x.first);
    return shape_.in_c * taps + 2 * (ones_.all() - ones_.inside(y, x));
  }

 private:
  const Shape& shape_;
  const std::uint64_t* weights_;
  std::size_t words_;
  TapSums ones_;
};

// The terms of a convolution on pixels: `zeros` is what the taps inside take off.
BorderTable pixel_border(const Graph& graph, const Op& op) {
  const Shape& s = op.shape;
  const std::size_t taps = std::size_t(s.window_h) * std::size_t(s.window_w), channels = std::size_t(s.in_c);
  TapSums zeros(s.window_h, s.window_w);
  const auto begin = [&](int c) {
    zeros.fill([&](std::size_t tap) {
      std::int64_t total = 0;
      for (std::size_t i = 0; i < channels; ++i) {
        total += op.int_weight((std::size_t(c) * taps + tap) * channels + i) * graph.zero(int(i));
      }
      return total;
    });
  };
  const auto* offset = op.constant<std::int32_t>(kOffset);
  return make_table(
      s, begin, [&](int c, const Range& y, const Range& x) { return offset[c] - ((zeros.inside(y, x) + 128) >> 8); });
}

BorderTable dot_border(const Graph& graph, const Op& op) {
  DotBase dots(op.shape, op.weights<std::uint64_t>());
  const bool integer = graph.numerics == Numerics::kInteger;
  const auto* scale = integer ? op.constant<std::int16_t>(kScale) : nullptr;
  const auto* offset = integer ? op.constant<std::int32_t>(kOffset) : nullptr;
  return make_table(
      op.shape, [&](int c) { dots.begin(c); },
      [&](int c, const Range& y, const Range& x) {
        return scale ? scale[c] * dots.entry(y, x) + offset[c] : dots.entry(y, x);
      });
}

// Nothing depends on which taps are inside.
BorderTable one_class(const Op& op) {
  BorderTable table;
  const std::size_t channels = std::size_t(op.shape.out_c);
  const std::size_t bytes = std::size_t(padded_channels(op.shape.out_c)) * sizeof(std::int32_t);
  table.base = Buffer(bytes);
  std::memset(table.base.data(), 0, bytes);
  const auto* offset = op.constant<std::int32_t>(kOffset);
  if (offset) std::memcpy(table.base.data(), offset, channels * sizeof(std::int32_t));
  table.row_class.assign(std::size_t(op.shape.out_h), 0);
  table.col_class.assign(std::size_t(op.shape.out_w), 0);
  return table;
}

}  // namespace

BorderTable make_border(const Graph& graph, const Op& op) {
  if (op.core == Core::kBconv) return dot_border(graph, op);
  if (graph.numerics == Numerics::kFloat) return {};
  return op.on_pixels() ? pixel_border(graph, op) : one_class(op);
}

}  // namespace ovsw
