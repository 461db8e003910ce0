// What zero padding costs a binary convolution, as integers.
//
// The kernels read a tap outside the image as all-zero bits, that is, as -1 in every channel, where it should count
// nothing. With C channels and p_t = popcount of tap t's weights, such a tap adds p_t to the popcount of patch xor
// weights. The dot over the taps inside is therefore
//
//     dot = sum over inside t of (C - 2 * popcount_t)  =  C * inside  +  2 * (sum over outside t of p_t)  -  2 *
//     popcount
//           \_____________________________________ base _____________________________________/
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

  Border view() const { return {base.as<std::int32_t>(), row_class.data(), col_class.data(), nullptr, nullptr}; }
};

// The table of an op, with the rows padded as kernels.h has it; no rows if its kernel needs none:
//     bconv in float       base = that of the dot
//     bconv                base = scale * (that of the dot) + offset
//     conv on pixels       base = offset - zero point of the taps inside
//     others in integers   base = offset
BorderTable make_border(const Graph& graph, const Op& op);

}  // namespace ovsw
