// A graph made ready to run on one kernel table: kernels chosen, weights repacked, buffers placed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/graph/graph.h"
#include "csrc/plan/border.h"
#include "kernels/kernels.h"

namespace ovsw {

// One kernel call. Places in the arena are byte offsets, kNowhere if absent.
struct Step {
  static constexpr std::size_t kNowhere = std::size_t(-1);

  std::string name;
  OpKind kind;
  KernelFn kernel;   // float numerics, else null
  KernelArgs args;   // all but the addresses inside the arena
  IntFn int_kernel;  // integer numerics, else null
  IntArgs int_args;  // likewise, and but for the range of channels
  Shape shape;
  std::size_t in, residual, out, bits;
  ValueKind residual_kind, out_kind;  // where those are
  double macs;
};

struct Plan {
  const KernelTable* table;
  Numerics numerics;
  Value input, output;
  std::vector<float> mean, std;
  std::vector<Step> steps;
  std::size_t input_at, output_at;
  std::size_t arena_bytes;
  std::size_t scratch_bytes;         // per thread
  std::vector<Buffer> weights;       // packed weights, and copies of what is per channel
  std::vector<BorderTable> borders;  // steps point into both
  std::size_t weight_bytes;
};

// The table to use: `isa` if not empty, else the best supported one. Throws InvalidError for a name that this version
// does not know, std::runtime_error if it is known but not built or not supported by this CPU.
const KernelTable& choose_table(const std::string& isa);

// The result keeps nothing of the file. Throws InvalidError.
std::unique_ptr<const Plan> make_plan(const Graph& graph, const KernelTable& table);

}  // namespace ovsw
