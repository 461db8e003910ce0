// A graph prepared for one kernel table: kernels chosen, weights packed, buffers placed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/graph/graph.h"
#include "csrc/plan/memory.h"
#include "kernels/kernels.h"

namespace ovsw {

// One kernel call. References to values are indices, kAbsent if absent.
struct Step {
  std::string name;
  const OpTraits* traits;
  const Kernel* kernel;
  KernelArgs args;  // everything but the addresses of values and the range of channels
  std::uint32_t in, residual, out, bits;
  double macs;
};

struct Plan {
  const KernelTable* table;
  Numerics numerics;
  std::vector<Value> values;
  std::vector<std::uint32_t> outputs;
  std::vector<float> mean, std;
  std::vector<Step> steps;
  std::vector<std::size_t> place;  // of each value in the arena, in bytes
  Memory memory;
  std::vector<Buffer> weights;  // packed weights and per-channel constants
  std::vector<Buffer> borders;  // steps point into both

  const Value& input_value() const { return values[0]; }
  const Value& output_value(std::size_t i) const { return values[outputs[i]]; }

  // A step's arguments with the values at place_of(index).
  template <typename PlaceOf>
  KernelArgs bind(const Step& step, PlaceOf place_of) const {
    const auto view = [&](std::uint32_t v) { return v == kAbsent ? View{} : View{place_of(v), values[v].kind}; };
    KernelArgs args = step.args;
    args.in = view(step.in);
    args.residual = view(step.residual);
    args.out = view(step.out);
    args.bits = static_cast<std::uint64_t*>(view(step.bits).data);
    return args;
  }
};

// The table to use: `isa` if not empty, else the best supported one. Throws InvalidError for a name that this version
// does not know, std::runtime_error if it is known but not built or not supported by this CPU.
const KernelTable& choose_table(const std::string& isa);

// The plan does not refer to the file. Throws InvalidError, before allocating, if the plan and a run with `threads`
// threads would need more than `limit` bytes.
std::unique_ptr<const Plan> make_plan(const Graph& graph, const KernelTable& table, int threads, std::size_t limit);

}  // namespace ovsw
