// The border correction of binary convolutions.
//
// The kernels read a tap outside the image as all-zero bits, that is, as -1 in every channel, although it should count
// as nothing. With C channels and p_t the popcount of the weights of tap t, such a tap adds p_t to the popcount of
// patch xor weights. The dot over the taps inside is therefore
//
//     dot = sum over t inside of (C - 2 * popcount_t)
//         = C * (taps inside) + 2 * (sum over t outside of p_t)  -  2 * popcount
//           \_____________________ base _____________________/
//
// If a tap outside counts as p in every channel instead of nothing, it adds p * W', W' being the sum of its weights.
// The sum S over the window, which a window scale multiplies, is 2 * popcount(patch) - C * (taps inside), plus p * C
// for each tap outside.
//
// base depends on the output channel and on which taps are outside. The latter is the same for all pixels of a class:
// the rows with the same range of kernel rows inside, times the columns likewise. A 3x3 kernel with padding 1 has 3 x 3
// classes on any map of more than one pixel each way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/graph/graph.h"
#include "kernels/kernels.h"

namespace ovsw {

// The bytes that the borders of a graph will allocate. Computing them allocates nothing and takes time in proportion to
// the number of classes, not of pixels.
std::size_t border_bytes(const Graph& graph);

// The borders of the ops, one each, in memory that is appended to `memory`. Rows of base are padded as kernels.h says;
// null where a kernel needs no border:
//     bconv in float       base = that of the dot, with outside and window
//     bconv                base = scale * (that of the dot) + window * (that of S) + offset + terms of taps outside
//     conv on pixels       base = offset - zero point of the taps inside
//     others in integers   base = offset, one class
// Ops whose windows are placed alike along a side share the table of the classes of rows or columns.
std::vector<Border> make_borders(const Graph& graph, std::vector<Buffer>* memory);

}  // namespace ovsw
