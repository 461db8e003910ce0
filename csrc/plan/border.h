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

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/graph/graph.h"
#include "kernels/kernels.h"

namespace ovsw {

// What the borders of a graph take, as allocated. Nothing is allocated to find out, and the time is that of the number
// of classes, not of pixels.
std::size_t border_bytes(const Graph& graph);

// The borders of the ops, one each, in memory that is appended to `memory`. Rows of base are padded as kernels.h has
// it; a kernel that needs nothing of it has null:
//     bconv in float       base = that of the dot, with outside and window
//     bconv                base = scale * (that of the dot) + window * (that of S) + offset + what taps outside add
//     conv on pixels       base = offset - zero point of the taps inside
//     others in integers   base = offset, one class
// Ops whose windows lie in the same way along a side share the table that says in which class a row or column is.
std::vector<Border> make_borders(const Graph& graph, std::vector<Buffer>* memory);

}  // namespace ovsw
