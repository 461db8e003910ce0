// Places all values in one block of memory. Those that are alive at the same time do not overlap.
#pragma once

#include <cstddef>
#include <vector>

#include "csrc/graph/graph.h"

namespace ovsw {

struct Arena {
  std::vector<std::size_t> offset;  // per value, in bytes
  std::size_t bytes;
};

// An op's output takes the place of its residual if no later op reads the residual and both have the same shape:
// kernels read each number of the residual before they write there.
Arena place_values(const Graph& graph);

}  // namespace ovsw
