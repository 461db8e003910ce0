// Integer numerics: proof that every sum of a graph stays within the bits that the kernels have for it.
#pragma once

#include "csrc/graph/graph.h"

namespace ovsw {

// The bounds of docs/numerics.md. Throws InvalidError naming the op.
void check_integer_bounds(const Graph& graph);

}  // namespace ovsw
