// What padding costs a binary convolution.
//
// The kernels read a tap outside the image as all-zero bits, that is, as -1 in every channel, where it should count
// nothing. With C channels and p_t = popcount of tap t's weights, such a tap adds p_t to the popcount of patch xor
// weights. The dot over the taps inside is therefore
//
//     dot = sum over inside t of (C - 2 * popcount_t)  =  C * inside  +  2 * (sum over outside t of p_t)  -  2 *
//     popcount
//           \_____________________________________ base _____________________________________/
//
// A tap outside that counts as p in every channel instead of nothing adds p * W', W' the sum of its weights. The sum S
// over the window, which a window scale multiplies, is 2 * popcount(patch) - C * inside, and p * C per tap outside.
//
// base depends on the output channel and on which taps are outside, which is the same for all pixels of a class:
// rows with the same range of inside kernel rows, times columns likewise (3 x 3 classes for a 3x3 kernel with padding 1
// on a map of more than one pixel each way).
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/graph/graph.h"
#include "kernels/kernels.h"

namespace ovsw {

struct BorderTable {
  Buffer base;                          // int32 [class][padded_channels]
  std::vector<std::int32_t> row_class;  // per output row; already multiplied by the number of column classes
  std::vector<std::int32_t> col_class;  // per output column
  std::vector<double> outside, window;  // of a bconv in float, as kernels.h has them; empty: none

  Border view() const {
    const auto data = [](const std::vector<double>& v) { return v.empty() ? nullptr : v.data(); };
    return {base.as<std::int32_t>(), row_class.data(), col_class.data(), data(outside), data(window)};
  }
};

// The table of an op, with the rows padded as kernels.h has it; no rows if its kernel needs none:
//     bconv in float       base = that of the dot, with outside and window
//     bconv                base = scale * (that of the dot) + window * (that of S) + offset + what taps outside add
//     conv on pixels       base = offset - zero point of the taps inside
//     others in integers   base = offset
BorderTable make_border(const Graph& graph, const Op& op);

}  // namespace ovsw
