#include "csrc/plan/border.h"

#include <algorithm>
#include <bitset>
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

}  // namespace

BorderTable make_border(const Shape& s, const std::uint64_t* weights) {
  const Axis rows(s.in_h, s.out_h, s.kernel_h, s.stride_h, s.pad_h);
  const Axis cols(s.in_w, s.out_w, s.kernel_w, s.stride_w, s.pad_w);
  const std::size_t words = (std::size_t(s.in_c) + 63) / 64;
  const std::size_t channels = std::size_t(s.out_c), width = std::size_t(s.kernel_w) + 1;

  BorderTable table;
  table.base.resize(rows.ranges.size() * cols.ranges.size() * channels);
  // ones[y * width + x]: the set bits of the taps above and to the left of (y, x), so that any rectangle is four reads.
  std::vector<std::int32_t> ones((std::size_t(s.kernel_h) + 1) * width, 0);
  for (std::size_t c = 0; c < channels; ++c) {
    for (int ky = 0; ky < s.kernel_h; ++ky) {
      std::int32_t row = 0;
      for (int kx = 0; kx < s.kernel_w; ++kx) {
        for (std::size_t w = 0; w < words; ++w) row += std::int32_t(std::bitset<64>(*weights++).count());
        const std::size_t at = std::size_t(ky) * width + std::size_t(kx) + 1;
        ones[at + width] = ones[at] + row;
      }
    }
    std::int32_t* base = table.base.data() + c;
    for (const Range& y : rows.ranges) {
      for (const Range& x : cols.ranges) {
        const auto corner = [&](int ky, int kx) { return ones[std::size_t(ky) * width + std::size_t(kx)]; };
        const std::int32_t inside = corner(y.second, x.second) - corner(y.first, x.second) - corner(y.second, x.first) +
                                    corner(y.first, x.first);
        const int taps = (y.second - y.first) * (x.second - x.first);
        *base = s.in_c * taps + 2 * (ones.back() - inside);
        base += channels;
      }
    }
  }
  for (std::int32_t i : rows.index) table.row_class.push_back(i * std::int32_t(cols.ranges.size()));
  table.col_class = cols.index;
  return table;
}

}  // namespace ovsw
