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
  TapSums(int kernel_h, int kernel_w)
      : height_(std::size_t(kernel_h)), width_(std::size_t(kernel_w)), sums_((height_ + 1) * (width_ + 1), 0) {}

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

// A table of rows of `stride` whose entry for channel c and taps y, x inside is entry(c, y, x); low 32 bits count.
// begin(c) is called before the entries of a channel.
template <typename Begin, typename Entry>
BorderTable make_table(const Shape& s, int stride, Begin begin, Entry entry) {
  const Axis rows(s.in_h, s.out_h, s.kernel_h, s.stride_h, s.pad_h);
  const Axis cols(s.in_w, s.out_w, s.kernel_w, s.stride_w, s.pad_w);
  BorderTable table;
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
      : shape_(s), weights_(weights), words_((std::size_t(s.in_c) + 63) / 64), ones_(s.kernel_h, s.kernel_w) {}

  void begin(int c) {
    const std::size_t taps = std::size_t(shape_.kernel_h) * std::size_t(shape_.kernel_w);
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

BorderTable int_pixel_border(const Graph& graph, const Op& op, int pixel_centre) {
  const Shape& s = op.shape;
  const std::size_t taps = std::size_t(s.kernel_h) * std::size_t(s.kernel_w), channels = std::size_t(s.in_c);
  TapSums zeros(s.kernel_h, s.kernel_w), weights(s.kernel_h, s.kernel_w);
  const auto begin = [&](int c) {
    const auto sum = [&](std::size_t tap, auto term) {
      std::int64_t total = 0;
      for (std::size_t i = 0; i < channels; ++i) {
        total += op.int_weight((std::size_t(c) * taps + tap) * channels + i) * term(int(i));
      }
      return total;
    };
    zeros.fill([&](std::size_t tap) { return sum(tap, [&](int i) { return graph.zero(i); }); });
    weights.fill([&](std::size_t tap) { return sum(tap, [&](int) { return std::int64_t(1); }); });
  };
  const auto entry = [&](int c, const Range& y, const Range& x) {
    return op.int_offset[c] - ((zeros.inside(y, x) + 128) >> 8) + pixel_centre * weights.inside(y, x);
  };
  return make_table(s, int_base_stride(s.out_c), begin, entry);
}

}  // namespace

BorderTable make_border(const Shape& s, const std::uint64_t* weights) {
  DotBase dots(s, weights);
  return make_table(
      s, s.out_c, [&](int c) { dots.begin(c); }, [&](int, const Range& y, const Range& x) { return dots.entry(y, x); });
}

BorderTable make_int_border(const Graph& graph, const Op& op, int pixel_centre) {
  const int stride = int_base_stride(op.shape.out_c);
  if (op.kind == OpKind::kBconv) {
    DotBase dots(op.shape, op.weight_bits);
    return make_table(
        op.shape, stride, [&](int c) { dots.begin(c); },
        [&](int c, const Range& y, const Range& x) { return op.mult[c] * dots.entry(y, x) + op.int_offset[c]; });
  }
  if (op.kind == OpKind::kConv && op.input == 0) return int_pixel_border(graph, op, pixel_centre);
  // One class: nothing depends on which taps are inside.
  BorderTable table;
  const std::size_t bytes = std::size_t(stride) * sizeof(std::int32_t);
  table.base = Buffer(bytes);
  std::memset(table.base.data(), 0, bytes);
  if (op.int_offset) std::memcpy(table.base.data(), op.int_offset, std::size_t(op.shape.out_c) * sizeof(std::int32_t));
  table.row_class.assign(std::size_t(op.shape.out_h), 0);
  table.col_class.assign(std::size_t(op.shape.out_w), 0);
  return table;
}

}  // namespace ovsw
