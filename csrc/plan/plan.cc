#include "csrc/plan/plan.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "csrc/base/error.h"
#include "csrc/plan/arena.h"
#include "csrc/plan/border.h"

namespace ovsw {
namespace {

// A row of a per-channel tensor in the plan's form: padded with zeros to a multiple of 64 elements, u8 widened to
// int32.
struct Row {
  const std::byte* from;
  std::size_t count, from_bytes, bytes;
  bool widens;

  // If there is no such row, bytes is 0.
  Row(const TensorView* t, std::size_t row) : from(nullptr), count(0), from_bytes(0), bytes(0), widens(false) {
    const std::size_t rows = !t ? 0 : t->shape.size() == 1 ? 1 : t->shape[0];
    if (row >= rows) return;
    count = t->shape.back();
    from_bytes = t->bytes / rows;
    from = t->data + row * from_bytes;
    widens = t->dtype == Dtype::kU8;
    bytes = std::size_t(padded_channels(int(count))) * (widens ? sizeof(std::int32_t) : from_bytes / count);
  }
};

// Where an op's constants come from.
Row row_of(const Op& op, Constant which) {
  if (which == kWindow) return {op.constants[kScale], 1};
  if (which == kPositive) return {op.constants[kSlope], 1};
  return {op.constants[which], 0};
}

constexpr Constant kAllConstants[kConstantCount] = {kScale, kOffset, kSlope, kShift, kThreshold, kWindow, kPositive};

void check_memory(const Memory& m, int threads, std::size_t limit) {
  check(m.total(threads) <= limit, "needs ", m.total(threads), " bytes of memory (maps ", m.maps, ", weights ",
        m.weights, ", borders ", m.borders, ", scratch ", m.scratch, " for each of ", threads,
        " threads, input and output ", m.arrays, "), the limit is ", limit,
        "; raise it with memory_limit (--memory-limit of a command)");
}

class Planner {
 public:
  Planner(const Graph& graph, const KernelTable& table) : graph_(graph), table_(table) {}

  // Counts the memory that the plan needs.
  Memory measure() {
    arena_ = place_values(graph_);
    Memory m{};
    m.maps = Buffer::takes(arena_.bytes);
    m.borders = border_bytes(graph_);
    for (const Op& op : graph_.ops) {
      const std::size_t packed = kernel(op).packed_bytes(op.shape);
      if (packed) m.weights += Buffer::takes(packed);
      for (Constant which : kAllConstants) {
        const std::size_t bytes = row_of(op, which).bytes;
        if (bytes) m.weights += Buffer::takes(bytes);
      }
      m.scratch = std::max(m.scratch, kernel(op).scratch_bytes(op.shape));
    }
    m.scratch = Buffer::takes(m.scratch);
    m.arrays = graph_.values[0].elements() * sizeof(float);
    for (std::uint32_t v : graph_.outputs) m.arrays += 2 * graph_.values[v].elements() * sizeof(float);
    return m;
  }

  std::unique_ptr<const Plan> make(const Memory& memory) {
    plan_->table = &table_;
    plan_->numerics = graph_.numerics;
    plan_->values = graph_.values;
    plan_->outputs = graph_.outputs;
    plan_->mean = graph_.mean;
    plan_->std = graph_.std;
    plan_->place = std::move(arena_.offset);
    plan_->memory = memory;
    const std::vector<Border> borders = make_borders(graph_, &plan_->borders);
    plan_->steps.reserve(graph_.ops.size());
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) plan_->steps.push_back(step(graph_.ops[i], borders[i]));
    return std::move(plan_);
  }

 private:
  const Kernel& kernel(const Op& op) const { return table_.kernel(graph_.numerics, op.core); }

  Step step(const Op& op, const Border& border) {
    KernelArgs args{};
    args.shape = op.shape;
    args.last_channel = op.shape.out_c;
    args.weights = pack(op);
    args.border = border;
    args.act = op.act;
    args.lo = op.clamp_lo;
    args.hi = op.clamp_hi;
    args.channel_shift = op.channels_before;
    args.per_channel = op.per_channel;
    args.wide = op.wide;
    args.exclude_pad = op.exclude_pad;
    args.pad_value = op.pad_value;
    for (Constant which : kAllConstants) args.constants[which] = copy(row_of(op, which));
    return {op.name, op.traits, &kernel(op), args, op.input, op.residual, op.out, op.bits, op.macs()};
  }

  const void* pack(const Op& op) {
    const std::size_t bytes = kernel(op).packed_bytes(op.shape);
    if (bytes == 0) return nullptr;
    const void* weights = op.weight->data;
    std::vector<std::int16_t> wide;
    if (op.weight->dtype == Dtype::kI8) {
      wide.resize(op.weight->bytes);
      for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = op.int_weight(i);
      weights = wide.data();
    }
    void* packed = keep(bytes);
    kernel(op).pack(op.shape, weights, packed);
    return packed;
  }

  const void* copy(const Row& row) {
    if (row.bytes == 0) return nullptr;
    void* to = keep(row.bytes);
    std::memset(to, 0, row.bytes);
    if (row.widens) {
      for (std::size_t i = 0; i < row.count; ++i) static_cast<std::int32_t*>(to)[i] = std::int32_t(row.from[i]);
    } else {
      std::memcpy(to, row.from, row.from_bytes);
    }
    return to;
  }

  void* keep(std::size_t bytes) {
    plan_->weights.emplace_back(bytes);
    return plan_->weights.back().data();
  }

  const Graph& graph_;
  const KernelTable& table_;
  Arena arena_;
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
  fail("unknown instruction set '", isa, "'; known: ", known);
}

std::unique_ptr<const Plan> make_plan(const Graph& graph, const KernelTable& table, int threads, std::size_t limit) {
  Planner planner(graph, table);
  const Memory memory = planner.measure();
  check_memory(memory, threads, limit);
  return planner.make(memory);
}

}  // namespace ovsw
