// Integer numerics: proves that no sum of a graph overflows the bits that the kernels have for it.
#pragma once

#include "csrc/graph/graph.h"

namespace ovsw {

// Checks the bounds of docs/numerics.md. Among the values `given`, an i32 is assumed to use a quarter of its range.
// Throws InvalidError naming the op.
void check_integer_bounds(const Graph& graph, const std::vector<std::uint32_t>& given);

}  // namespace ovsw
