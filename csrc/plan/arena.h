// Places values in one block of memory so that those alive at the same time do not overlap.
#pragma once

#include <cstddef>
#include <vector>

#include "csrc/graph/graph.h"

namespace ovsw {

struct Arena {
  std::vector<std::size_t> offset;  // per value, in bytes
  std::size_t bytes;
};

// An op's output takes over its residual's place if nobody reads the residual afterwards and both have the same shape:
// a kernel then reads each number of it before it writes there.
Arena place_values(const Graph& graph);

}  // namespace ovsw
