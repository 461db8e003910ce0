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
constexpr const char* kKnownTables[] = {"x86_avx512", "x86_avx2", "arm_neon_dot", "arm_neon", "portable"};

class Planner {
 public:
  Planner(const Graph& graph, const KernelTable& table) : graph_(graph), table_(table) {}

  std::unique_ptr<const Plan> make() {
    const Arena arena = place_values(graph_);
    check(arena.bytes <= kMaxArena, "needs ", arena.bytes, " bytes for its maps, allowed are ", kMaxArena);
    plan_->table = &table_;
    plan_->numerics = graph_.numerics;
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
    if (op.residual != kAbsent) step.residual_kind = graph_.values[op.residual].kind;
    if (op.out_map != kAbsent) step.out_kind = graph_.values[op.out_map].kind;
    step.shape = op.shape;
    if (graph_.numerics == Numerics::kInteger) {
      set_integer(op, &step);
    } else {
      set_float(op, &step);
    }
    plan_->steps.push_back(std::move(step));
  }

  void set_float(const Op& op, Step* step) {
    step->args.shape = op.shape;
    step->args.channel_shift = op.channels_before;
    set_kernel(op, step);
    const std::size_t channels = std::size_t(op.shape.out_c);
    Epilogue& ep = step->args.epilogue;
    ep.act = op.act;
    ep.lo = op.clamp_lo;
    ep.hi = op.clamp_hi;
    ep.scale = copy(op.scale, channels);
    ep.offset = copy(op.offset, channels);
    ep.slope = copy(op.slope, channels);
  }

  void set_integer(const Op& op, Step* step) {
    const IntKernels& k = table_.integer;
    IntArgs& args = step->int_args;
    args.shape = op.shape;
    args.channel_shift = op.channels_before;
    args.lo = std::int32_t(op.clamp_lo);
    args.hi = std::int32_t(op.clamp_hi);
    args.logit_scale = op.logit_scale;
    need_scratch(k.map_scratch_bytes(op.shape));
    switch (op.kind) {
      case OpKind::kBconv:
        step->int_kernel = k.bconv;
        need_scratch(k.bconv_scratch_bytes(op.shape));
        k.bconv_pack(op.shape, op.weight_bits, keep(k.bconv_packed_bytes(op.shape), &args.weights));
        break;
      case OpKind::kConv:
        if (op.input == 0) {
          step->int_kernel = k.conv_u8;
          need_scratch(k.conv_u8_scratch_bytes(op.shape));
          pack_integer(op, k.conv_u8_packed_bytes, k.conv_u8_pack, &args.weights);
        } else {
          step->int_kernel = k.conv_i16;
          need_scratch(k.conv_i16_scratch_bytes(op.shape));
          pack_integer(op, k.conv_i16_packed_bytes, k.conv_i16_pack, &args.weights);
        }
        break;
      case OpKind::kLinear:
        step->int_kernel = k.linear;
        pack_integer(op, k.linear_packed_bytes, k.linear_pack, &args.weights);
        break;
      case OpKind::kMaxpool:
        step->int_kernel = k.maxpool;
        break;
      case OpKind::kAvgpool:
        step->int_kernel = k.avgpool;
        break;
      case OpKind::kChannelPad:
        step->int_kernel = k.channel_pad;
        break;
      case OpKind::kEltwise:
        step->int_kernel = k.eltwise;
        break;
    }
    plan_->borders.push_back(make_int_border(graph_, op, *k.pixel_centre));
    args.border = plan_->borders.back().view();
    args.mult = padded(op.mult, op.shape.out_c);
    std::vector<std::int32_t> shift;
    if (op.shift) shift.assign(op.shift, op.shift + op.shape.out_c);
    args.shift = padded(op.shift ? shift.data() : nullptr, op.shape.out_c);
  }

  void pack_integer(const Op& op, std::size_t (*bytes)(const Shape&),
                    void (*pack)(const Shape&, const std::int16_t*, void*), const void** address) {
    const Shape& s = op.shape;
    std::vector<std::int16_t> wide;
    if (!op.weight_i16) {
      wide.resize(std::size_t(s.out_c) * std::size_t(s.kernel_h) * std::size_t(s.kernel_w) * std::size_t(s.in_c));
      for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = op.int_weight(i);
    }
    pack(s, op.weight_i16 ? op.weight_i16 : wide.data(), keep(bytes(s), address));
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

  // Per channel, with zeros up to the next multiple of 64 elements.
  template <typename T>
  const T* padded(const T* from, int channels) {
    if (!from) return nullptr;
    const void* address;
    const std::size_t bytes = std::size_t(int_base_stride(channels)) * sizeof(T);
    void* to = keep(bytes, &address);
    std::memset(to, 0, bytes);
    std::memcpy(to, from, std::size_t(channels) * sizeof(T));
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
