#include "csrc/plan/plan.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "csrc/base/error.h"
#include "csrc/plan/arena.h"

namespace ovsw {
namespace {

constexpr std::size_t kMaxArena = std::size_t(1) << 31;

class Planner {
 public:
  Planner(const Graph& graph, const KernelTable& table) : graph_(graph), table_(table) {}

  std::unique_ptr<const Plan> make() {
    Arena arena = place_values(graph_);
    check(arena.bytes <= kMaxArena, "needs ", arena.bytes, " bytes for its maps, allowed are ", kMaxArena);
    plan_->table = &table_;
    plan_->numerics = graph_.numerics;
    plan_->values = graph_.values;
    plan_->outputs = graph_.outputs;
    plan_->mean = graph_.mean;
    plan_->std = graph_.std;
    plan_->place = std::move(arena.offset);
    plan_->arena_bytes = arena.bytes;
    plan_->borders.reserve(graph_.ops.size());
    for (const Op& op : graph_.ops) plan_->steps.push_back(step(op));
    return std::move(plan_);
  }

 private:
  Step step(const Op& op) {
    const Kernel& kernel = table_.kernel(graph_.numerics, op.core);
    plan_->scratch_bytes = std::max(plan_->scratch_bytes, kernel.scratch_bytes(op.shape));
    plan_->borders.push_back(make_border(graph_, op));
    KernelArgs args{};
    args.shape = op.shape;
    args.last_channel = op.shape.out_c;
    args.weights = pack(op, kernel);
    args.border = plan_->borders.back().view();
    args.act = op.act;
    args.lo = op.clamp_lo;
    args.hi = op.clamp_hi;
    args.channel_shift = op.channels_before;
    args.per_channel = op.per_channel;
    args.exclude_pad = op.exclude_pad;
    args.pad_value = op.pad_value;
    for (Constant which : {kScale, kOffset, kSlope, kShift, kThreshold}) {
      args.constants[which] = copy(op.constants[which], 0);
    }
    args.constants[kWindow] = copy(op.constants[kScale], 1);
    args.constants[kPositive] = copy(op.constants[kSlope], 1);
    return {op.name, op.traits, &kernel, args, op.input, op.residual, op.out, op.bits, op.macs()};
  }

  const void* pack(const Op& op, const Kernel& kernel) {
    const std::size_t bytes = kernel.packed_bytes(op.shape);
    if (bytes == 0) return nullptr;
    const void* weights = op.weight->data;
    std::vector<std::int16_t> wide;
    if (op.weight->dtype == Dtype::kI8) {
      wide.resize(op.weight->bytes);
      for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = op.int_weight(i);
      weights = wide.data();
    }
    void* packed = keep(bytes);
    kernel.pack(op.shape, weights, packed);
    return packed;
  }

  // A row of a tensor per channel, with zeros up to the next multiple of 64 elements; u8 come as int32. Null if there
  // is no such row.
  const void* copy(const TensorView* t, std::size_t row) {
    const std::size_t rows = !t ? 0 : t->shape.size() == 1 ? 1 : t->shape[0];
    if (row >= rows) return nullptr;
    const std::size_t n = t->shape.back(), padded = std::size_t(padded_channels(int(n))), row_bytes = t->bytes / rows;
    const bool widens = t->dtype == Dtype::kU8;
    const std::size_t bytes = padded * (widens ? sizeof(std::int32_t) : row_bytes / n);
    void* to = keep(bytes);
    std::memset(to, 0, bytes);
    if (widens) {
      for (std::size_t i = 0; i < n; ++i) static_cast<std::int32_t*>(to)[i] = std::int32_t(t->data[i]);
    } else {
      std::memcpy(to, t->data + row * row_bytes, row_bytes);
    }
    return to;
  }

  void* keep(std::size_t bytes) {
    plan_->weights.emplace_back(bytes);
    plan_->weight_bytes += bytes;
    return plan_->weights.back().data();
  }

  const Graph& graph_;
  const KernelTable& table_;
  std::unique_ptr<Plan> plan_ = std::make_unique<Plan>();
};

}  // namespace

const KernelTable& choose_table(const std::string& isa) {
  int count = 0;
  const KernelTable* const* tables = kernel_tables(&count);
  for (int i = 0; i < count; ++i) {
    if (!isa.empty() && isa != tables[i]->name) continue;
    if (tables[i]->supported()) return *tables[i];
    if (!isa.empty()) throw std::runtime_error(text("isa '", isa, "' is not supported by this CPU"));
  }
  if (isa.empty()) throw std::runtime_error("no kernel table supports this CPU");
  std::string known;
  for (const char* const* name = kKnownTables; *name; ++name) {
    if (isa == *name) throw std::runtime_error(text("isa '", isa, "' is not built for this platform"));
    known += text(known.empty() ? "" : ", ", *name);
  }
  fail("unknown isa '", isa, "'; known are ", known);
}

std::unique_ptr<const Plan> make_plan(const Graph& graph, const KernelTable& table) {
  return Planner(graph, table).make();
}

}  // namespace ovsw
