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
  const std::size_t channels = std::size_t(s.out_c), classes = rows.ranges.size() * cols.ranges.size();

  BorderTable table;
  table.base.assign(classes * channels, 0);
  for (std::size_t c = 0; c < channels; ++c) {
    for (int ky = 0; ky < s.kernel_h; ++ky) {
      for (int kx = 0; kx < s.kernel_w; ++kx) {
        std::int32_t ones = 0;
        for (std::size_t w = 0; w < words; ++w) ones += std::int32_t(std::bitset<64>(*weights++).count());
        for (std::size_t k = 0; k < classes; ++k) {
          const Range& y = rows.ranges[k / cols.ranges.size()];
          const Range& x = cols.ranges[k % cols.ranges.size()];
          const bool inside = ky >= y.first && ky < y.second && kx >= x.first && kx < x.second;
          table.base[k * channels + c] += inside ? s.in_c : 2 * ones;
        }
      }
    }
  }
  for (std::int32_t i : rows.index) table.row_class.push_back(i * std::int32_t(cols.ranges.size()));
  table.col_class = cols.index;
  return table;
}

}  // namespace ovsw
