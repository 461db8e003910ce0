#include "csrc/plan/plan.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "csrc/base/error.h"
#include "csrc/plan/arena.h"

namespace ovsw {
namespace {

constexpr std::size_t kMaxArena = std::size_t(1) << 31;

// Tables that exist in some build of this version, wherever they are not in this one.
constexpr const char* kKnownTables[] = {"portable", "portable_avx2", "portable_avx512"};

class Planner {
 public:
  Planner(const Graph& graph, const KernelTable& table) : graph_(graph), table_(table) {}

  std::unique_ptr<const Plan> make() {
    const Arena arena = place_values(graph_);
    check(arena.bytes <= kMaxArena, "needs ", arena.bytes, " bytes for its maps, allowed are ", kMaxArena);
    plan_->table = &table_;
    plan_->input = graph_.values[0];
    plan_->output = graph_.values[graph_.output];
    plan_->mean = graph_.mean;
    plan_->std = graph_.std;
    plan_->input_at = arena.offset[0];
    plan_->output_at = arena.offset[graph_.output];
    plan_->arena_bytes = arena.bytes;
    plan_->borders.reserve(graph_.ops.size());
    for (const Op& op : graph_.ops) add_step(op, arena);
    return std::move(plan_);
  }

 private:
  void add_step(const Op& op, const Arena& arena) {
    const auto place = [&](std::uint32_t v) { return v == kAbsent ? Step::kNowhere : arena.offset[v]; };
    Step step{};
    step.name = op.name;
    step.kind = op.kind;
    step.macs = op.macs();
    step.in = place(op.input);
    step.residual = place(op.residual);
    step.out = place(op.out_map);
    step.bits = place(op.out_bits);
    step.args.shape = op.shape;
    step.args.channel_shift = op.channels_before;
    set_kernel(op, &step);

    const std::size_t channels = std::size_t(op.shape.out_c);
    Epilogue& ep = step.args.epilogue;
    ep.act = op.act;
    ep.lo = op.clamp_lo;
    ep.hi = op.clamp_hi;
    ep.scale = copy(op.scale, channels);
    ep.offset = copy(op.offset, channels);
    ep.slope = copy(op.slope, channels);
    plan_->steps.push_back(std::move(step));
  }

  void set_kernel(const Op& op, Step* step) {
    need_scratch(table_.map_scratch_bytes(op.shape));  // little; what the kernels with weights need comes on top
    switch (op.kind) {
      case OpKind::kBconv:
        step->kernel = table_.bconv;
        need_scratch(table_.bconv_scratch_bytes(op.shape));
        table_.bconv_pack(op.shape, op.weight_bits, keep(table_.bconv_packed_bytes(op.shape), &step->args.weights));
        plan_->borders.push_back(make_border(op.shape, op.weight_bits));
        step->args.border = plan_->borders.back().view();
        break;
      case OpKind::kConv:
      case OpKind::kLinear:
        step->kernel = table_.conv;
        need_scratch(table_.conv_scratch_bytes(op.shape));
        table_.conv_pack(op.shape, op.weight, keep(table_.conv_packed_bytes(op.shape), &step->args.weights));
        break;
      case OpKind::kMaxpool:
        step->kernel = table_.maxpool;
        break;
      case OpKind::kAvgpool:
        step->kernel = table_.avgpool;
        break;
      case OpKind::kChannelPad:
        step->kernel = table_.channel_pad;
        break;
      case OpKind::kEltwise:
        step->kernel = table_.eltwise;
        break;
    }
  }

  void need_scratch(std::size_t bytes) { plan_->scratch_bytes = std::max(plan_->scratch_bytes, bytes); }

  void* keep(std::size_t bytes, const void** address) {
    plan_->weights.emplace_back(bytes);
    plan_->weight_bytes += bytes;
    void* data = plan_->weights.back().data();
    *address = data;
    return data;
  }

  template <typename T>
  const T* copy(const T* from, std::size_t n) {
    if (!from) return nullptr;
    const void* address;
    std::memcpy(keep(n * sizeof(T), &address), from, n * sizeof(T));
    return static_cast<const T*>(address);
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
  std::string known;
  for (const char* name : kKnownTables) {
    if (isa == name) throw std::runtime_error(text("isa '", isa, "' is not built for this platform"));
    known += text(known.empty() ? "" : ", ", name);
  }
  if (isa.empty()) throw std::runtime_error("no kernel table supports this CPU");
  fail("unknown isa '", isa, "'; known are ", known);
}

std::unique_ptr<const Plan> make_plan(const Graph& graph, const KernelTable& table) {
  return Planner(graph, table).make();
}

}  // namespace ovsw
