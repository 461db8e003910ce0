// Integer numerics: proof that every sum of a graph stays within the bits that the kernels have for it.
#pragma once

#include "csrc/graph/graph.h"

namespace ovsw {

// The bounds of docs/numerics.md; of the values `given` an i32 may be half of what 32 bits hold. Throws InvalidError
// naming the op.
void check_integer_bounds(const Graph& graph, const std::vector<std::uint32_t>& given);

}  // namespace ovsw
