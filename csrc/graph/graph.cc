#include "csrc/graph/graph.h"

#include <algorithm>
#include <cmath>

#include "csrc/base/error.h"
#include "csrc/graph/bounds.h"

namespace ovsw {
namespace {

// Largest map, in elements: 2^27 floats are 512 MiB.
constexpr std::size_t kMaxElements = std::size_t(1) << 27;
constexpr int kMaxKernel = 255;
constexpr int kMaxInputChannels = 1024;

std::string dims(const Value& v) { return text(v.c, "x", v.h, "x", v.w); }

// Turns one record into an op. The members are the parts of the job that every kind shares.
class OpBuilder {
 public:
  OpBuilder(const File& file, const Graph& graph, std::size_t index, std::vector<bool>* written)
      : file_(file),
        graph_(graph),
        r_(file.ops[index]),
        integer_(file.numerics == Numerics::kInteger),
        written_(*written),
        label_(text("op ", index, " '", r_.name, "'")) {}

  Op build() {
    require(r_.kind >= 1 && r_.kind <= std::uint16_t(OpKind::kEltwise), "kind ", r_.kind, " is unknown");
    op_.kind = OpKind(r_.kind);
    op_.name = r_.name;
    const Value& in = read(r_.input, "input", input_kind());
    op_.input = r_.input;
    set_core(in);
    set_activation();
    integer_ ? set_integer_epilogue() : set_float_epilogue();
    op_.out_map = write(r_.out_map, "out", out_kind());
    op_.out_bits = write(r_.out_bits, "bits", ValueKind::kBits);
    require(op_.out_map != kAbsent || op_.out_bits != kAbsent, "has no output");
    return op_;
  }

 private:
  template <typename... Parts>
  void require(bool condition, const Parts&... parts) const {
    check(condition, label_, ": ", parts...);
  }

  ValueKind input_kind() const {
    if (op_.kind == OpKind::kBconv) return ValueKind::kBits;
    if (!integer_) return ValueKind::kMap;
    return op_.kind == OpKind::kConv && r_.input == 0 ? ValueKind::kU8 : ValueKind::kI16;
  }

  ValueKind out_kind() const {
    if (!integer_ || op_.kind == OpKind::kLinear) return ValueKind::kMap;
    const bool wide = op_.kind == OpKind::kConv && r_.input != 0 && r_.out_map != kAbsent &&
                      graph_.values[r_.out_map].kind == ValueKind::kI32;
    return wide ? ValueKind::kI32 : ValueKind::kI16;
  }

  const Value& read(std::uint32_t ref, const char* what, ValueKind kind) const {
    require(written_[ref], what, " (value ", ref, ") is read before it is written");
    const Value& v = graph_.values[ref];
    require(v.kind == kind, what, " (value ", ref, ") is ", kind_name(v.kind), ", expected ", kind_name(kind));
    return v;
  }

  std::uint32_t write(std::uint32_t ref, const char* what, ValueKind kind) {
    if (ref == kAbsent) return ref;
    require(!written_[ref], what, " (value ", ref, ") is written twice");
    written_[ref] = true;
    const Value& v = graph_.values[ref];
    const Value expected{kind, op_.shape.out_c, op_.shape.out_h, op_.shape.out_w};
    require(v.kind == kind && v.c == expected.c && v.h == expected.h && v.w == expected.w, what, " (value ", ref,
            ") is ", kind_name(v.kind), " ", dims(v), ", computed is ", kind_name(kind), " ", dims(expected));
    return ref;
  }

  const std::byte* tensor(std::uint32_t ref, const char* what, Dtype dtype, std::vector<std::uint32_t> shape) const {
    require(ref != kAbsent, what, " is missing");
    const TensorView& t = file_.tensors[ref];
    require(t.dtype == dtype, what, " (tensor ", ref, ") has dtype ", int(t.dtype), ", expected ", int(dtype));
    bool same = t.shape.size() == shape.size();
    for (std::size_t d = 0; same && d < shape.size(); ++d) same = t.shape[d] == shape[d];
    if (!same) {
      std::string is, should;
      for (std::uint32_t d : t.shape) is += text(is.empty() ? "" : "x", d);
      for (std::uint32_t d : shape) should += text(should.empty() ? "" : "x", d);
      require(false, what, " (tensor ", ref, ") has shape ", is, ", expected ", should);
    }
    if (dtype == Dtype::kF32) require_finite<float>(t, ref, what);
    if (dtype == Dtype::kF64) require_finite<double>(t, ref, what);
    return t.data;
  }

  template <typename T>
  void require_finite(const TensorView& t, std::uint32_t ref, const char* what) const {
    const auto* data = reinterpret_cast<const T*>(t.data);
    const bool finite = std::all_of(data, data + t.bytes / sizeof(T), [](T x) { return std::isfinite(x); });
    require(finite, what, " (tensor ", ref, ") holds NaN or infinity");
  }

  // The number of output channels is the first dimension of the weights.
  int out_channels() const {
    require(r_.weight != kAbsent, "weight is missing");
    return int(file_.tensors[r_.weight].shape[0]);
  }

  void set_core(const Value& in) {
    Shape& s = op_.shape;
    s = {in.h, in.w, in.c, in.h, in.w, in.c, 1, 1, 1, 1, 0, 0};
    const bool windowed = op_.kind == OpKind::kBconv || op_.kind == OpKind::kConv || op_.kind == OpKind::kMaxpool ||
                          op_.kind == OpKind::kAvgpool;
    if (windowed) {
      set_window();
    } else {
      require(r_.kernel_h == 1 && r_.kernel_w == 1 && r_.stride_h == 1 && r_.stride_w == 1 && r_.pad_h == 0 &&
                  r_.pad_w == 0,
              "has a window, which ", op_name(op_.kind), " does not take");
    }
    const bool weighted = op_.kind == OpKind::kBconv || op_.kind == OpKind::kConv || op_.kind == OpKind::kLinear;
    if (weighted) {
      s.out_c = out_channels();
      // Sizes of patches, dots and the border correction are int32.
      require(double(s.in_c) * s.kernel_h * s.kernel_w < 1e9, "has too many inputs per output");
    } else {
      require(r_.weight == kAbsent, "has a weight, which ", op_name(op_.kind), " does not take");
    }
    const bool padded = op_.kind == OpKind::kChannelPad;
    require(padded || (r_.channels_before == 0 && r_.channels_after == 0), "has channels to pad, which ",
            op_name(op_.kind), " does not take");
    op_.channels_before = r_.channels_before;
    const auto u = [](int n) { return std::uint32_t(n); };
    switch (op_.kind) {
      case OpKind::kBconv:
        op_.weight_bits = reinterpret_cast<const std::uint64_t*>(
            tensor(r_.weight, "weight", Dtype::kBits, {u(s.out_c), r_.kernel_h, r_.kernel_w, u(s.in_c)}));
        break;
      case OpKind::kConv:
        set_weight({u(s.out_c), r_.kernel_h, r_.kernel_w, u(s.in_c)});
        break;
      case OpKind::kLinear: {
        const std::size_t features = in.pixels() * std::size_t(in.c);
        require(features <= (1u << 20), "has ", features, " input features, allowed are ", 1 << 20);
        s = {1, 1, int(features), 1, 1, s.out_c, 1, 1, 1, 1, 0, 0};
        set_weight({u(s.out_c), u(s.in_c)});
        break;
      }
      case OpKind::kMaxpool:
        require(2 * s.pad_h <= s.kernel_h && 2 * s.pad_w <= s.kernel_w, "is padded by more than half its kernel");
        break;
      case OpKind::kAvgpool:
        require(s.pad_h == 0 && s.pad_w == 0, "is padded, which avgpool does not take");
        break;
      case OpKind::kChannelPad:
        s.out_c = s.in_c + r_.channels_before + r_.channels_after;
        break;
      case OpKind::kEltwise:
        break;
    }
  }

  void set_window() {
    Shape& s = op_.shape;
    s.kernel_h = r_.kernel_h;
    s.kernel_w = r_.kernel_w;
    s.stride_h = r_.stride_h;
    s.stride_w = r_.stride_w;
    s.pad_h = r_.pad_h;
    s.pad_w = r_.pad_w;
    const bool global = op_.kind == OpKind::kAvgpool;  // a mean over the whole map may be wider
    const int most = global ? (1 << 16) - 1 : kMaxKernel;
    require(s.kernel_h >= 1 && s.kernel_w >= 1 && s.kernel_h <= most && s.kernel_w <= most, "kernel is ", s.kernel_h,
            "x", s.kernel_w, ", allowed are 1 to ", most);
    require(s.stride_h >= 1 && s.stride_w >= 1, "stride is ", s.stride_h, "x", s.stride_w);
    require(s.pad_h < s.kernel_h && s.pad_w < s.kernel_w, "padding ", s.pad_h, "x", s.pad_w,
            " is not smaller than the kernel");
    require(s.in_h + 2 * s.pad_h >= s.kernel_h && s.in_w + 2 * s.pad_w >= s.kernel_w, "kernel ", s.kernel_h, "x",
            s.kernel_w, " is larger than the padded map");
    s.out_h = (s.in_h + 2 * s.pad_h - s.kernel_h) / s.stride_h + 1;
    s.out_w = (s.in_w + 2 * s.pad_w - s.kernel_w) / s.stride_w + 1;
  }

  void set_weight(std::vector<std::uint32_t> shape) {
    if (!integer_) {
      op_.weight = typed<float>(r_.weight, "weight", Dtype::kF32, shape);
    } else if (file_.tensors[r_.weight].dtype == Dtype::kI8) {
      op_.weight_i8 = typed<std::int8_t>(r_.weight, "weight", Dtype::kI8, shape);
    } else {
      op_.weight_i16 = typed<std::int16_t>(r_.weight, "weight", Dtype::kI16, shape);
    }
  }

  template <typename T>
  const T* typed(std::uint32_t ref, const char* what, Dtype dtype, std::vector<std::uint32_t> shape) const {
    return reinterpret_cast<const T*>(tensor(ref, what, dtype, std::move(shape)));
  }

  void set_activation() {
    require(r_.activation <= std::uint16_t(Act::kPrelu), "activation ", r_.activation, " is unknown");
    op_.act = Act(r_.activation);
    op_.clamp_lo = r_.clamp_lo;
    op_.clamp_hi = r_.clamp_hi;
    if (op_.act == Act::kClamp) {
      require(r_.clamp_lo <= r_.clamp_hi, "clamps to [", r_.clamp_lo, ", ", r_.clamp_hi, "]");
    }
    if (op_.act == Act::kPrelu && !integer_) {
      op_.slope = typed<float>(r_.slope, "slope", Dtype::kF32, {std::uint32_t(op_.shape.out_c)});
    } else {
      require(r_.slope == kAbsent, "has a slope without prelu");
    }
  }

  void set_residual(ValueKind kind) {
    op_.residual = r_.residual;
    if (r_.residual == kAbsent) return;
    const Value& v = read(r_.residual, "residual", kind);
    const Shape& s = op_.shape;
    require(v.c == s.out_c && v.h == s.out_h && v.w == s.out_w, "residual (value ", r_.residual, ") is ", dims(v),
            ", the output ", dims({kind, s.out_c, s.out_h, s.out_w}));
  }

  void set_float_epilogue() {
    const std::uint32_t channels = std::uint32_t(op_.shape.out_c);
    require((r_.scale == kAbsent) == (r_.offset == kAbsent), "has only one of scale and offset");
    if (r_.scale != kAbsent) {
      op_.scale = typed<double>(r_.scale, "scale", Dtype::kF64, {channels});
      op_.offset = typed<double>(r_.offset, "offset", Dtype::kF64, {channels});
    }
    set_residual(ValueKind::kMap);
  }

  void set_integer_epilogue() {
    const std::uint32_t channels = std::uint32_t(op_.shape.out_c);
    require(op_.act != Act::kPrelu, "has prelu, which integer numerics do not take");
    const auto whole = [](float x) { return x >= -32768.0f && x <= 32767.0f && x == std::floor(x); };
    if (op_.act == Act::kClamp) {
      require(whole(op_.clamp_lo) && whole(op_.clamp_hi), "clamps to [", op_.clamp_lo, ", ", op_.clamp_hi,
              "], expected whole numbers of 16 bits");
    } else {
      op_.clamp_lo = -32768.0f;
      op_.clamp_hi = 32767.0f;
    }
    const bool residual32 = r_.residual != kAbsent && graph_.values[r_.residual].kind == ValueKind::kI32;
    set_residual(residual32 ? ValueKind::kI32 : ValueKind::kI16);

    const bool scaled = op_.kind == OpKind::kBconv || op_.kind == OpKind::kAvgpool;
    const bool linear = op_.kind == OpKind::kLinear;
    const bool offset = scaled || linear || op_.kind == OpKind::kConv;
    if (scaled) op_.mult = typed<std::int16_t>(r_.scale, "scale", Dtype::kI16, {channels});
    if (linear) {
      op_.logit_scale = *typed<float>(r_.scale, "scale", Dtype::kF32, {1});
      require(op_.logit_scale > 0, "scale is ", op_.logit_scale, ", expected a positive number");
    }
    require(scaled || linear || r_.scale == kAbsent, "has a scale, which ", op_name(op_.kind), " does not take");
    if (offset) {
      op_.int_offset = typed<std::int32_t>(r_.offset, "offset", Dtype::kI32, {channels});
      op_.shift = typed<std::uint8_t>(r_.shift, "shift", Dtype::kU8, {channels});
    } else {
      require(r_.offset == kAbsent && r_.shift == kAbsent, "has an offset or shift, which ", op_name(op_.kind),
              " does not take");
    }
    if (linear || out_kind() == ValueKind::kI32) {
      require(op_.act == Act::kNone && op_.residual == kAbsent && r_.out_bits == kAbsent && r_.out_map != kAbsent,
              "writes ", kind_name(out_kind()), ", which takes no residual, activation or bits");
    }
  }

  const File& file_;
  const Graph& graph_;
  const OpRecord& r_;
  const bool integer_;
  std::vector<bool>& written_;
  const std::string label_;
  Op op_{};
};

std::vector<float> channel_tensor(const File& file, std::uint32_t ref, const char* what, int channels) {
  const TensorView& t = file.tensors[ref];
  check(t.dtype == Dtype::kF32 && t.shape.size() == 1 && int(t.shape[0]) == channels, what, " (tensor ", ref,
        ") must hold one f32 for each of the ", channels, " input channels");
  const auto* data = reinterpret_cast<const float*>(t.data);
  return {data, data + channels};
}

// Every tensor has one user: what is loaded is then never larger than the file by more than a constant.
void check_tensor_uses(const File& file) {
  std::vector<std::uint32_t> uses(file.tensors.size(), 0);
  ++uses[file.mean];
  ++uses[file.std];
  for (const OpRecord& op : file.ops) {
    for (std::uint32_t ref : {op.weight, op.scale, op.offset, op.slope, op.shift}) {
      if (ref != kAbsent) ++uses[ref];
    }
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    check(uses[i] == 1, "tensor ", i, ": is referred to ", uses[i], " times, expected once");
  }
}

}  // namespace

const char* op_name(OpKind kind) {
  constexpr const char* kNames[] = {"", "bconv", "conv", "linear", "maxpool", "avgpool", "channel_pad", "eltwise"};
  return kNames[std::size_t(kind)];
}

const char* kind_name(ValueKind kind) {
  constexpr const char* kNames[] = {"a map", "bits", "i16", "i32", "u8"};
  return kNames[std::size_t(kind)];
}

std::int64_t Graph::zero(int channel) const {
  return std::int64_t(std::floor(double(mean[std::size_t(channel)]) * 65280.0 + 0.5));
}

double Op::macs() const {
  const bool weighted = kind == OpKind::kBconv || kind == OpKind::kConv || kind == OpKind::kLinear;
  const double taps = double(shape.kernel_h) * shape.kernel_w * shape.in_c;
  return weighted ? taps * shape.out_h * shape.out_w * shape.out_c : 0.0;
}

Graph build_graph(const File& file) {
  Graph graph;
  graph.numerics = file.numerics;
  const bool integer = file.numerics == Numerics::kInteger;
  for (std::size_t i = 0; i < file.values.size(); ++i) {
    const ValueRecord& r = file.values[i];
    check(r.kind <= std::uint32_t(integer ? ValueKind::kU8 : ValueKind::kBits), "value ", i, ": kind ", r.kind,
          " is unknown");
    const std::size_t pixels = std::size_t(r.h) * r.w;
    check(pixels <= kMaxElements && pixels * r.c <= kMaxElements, "value ", i, ": ", r.c, "x", r.h, "x", r.w,
          " is over the cap of ", kMaxElements, " elements");
    graph.values.push_back({ValueKind(r.kind), int(r.c), int(r.h), int(r.w)});
  }
  const Value& input = graph.values[0];
  const ValueKind input_kind = integer ? ValueKind::kU8 : ValueKind::kMap;
  check(input.kind == input_kind, "value 0 (the input) must be ", kind_name(input_kind));
  check(input.c <= kMaxInputChannels, "value 0 (the input) has ", input.c, " channels, allowed are ",
        kMaxInputChannels);
  std::vector<bool> written(graph.values.size(), false);
  written[0] = true;
  for (std::size_t i = 0; i < file.ops.size(); ++i) graph.ops.push_back(OpBuilder(file, graph, i, &written).build());
  for (std::size_t i = 0; i < written.size(); ++i) check(written[i], "value ", i, " is never written");
  graph.output = file.output;
  check(graph.values[graph.output].kind == ValueKind::kMap, "header field output (value ", graph.output,
        ") must be a map");
  graph.mean = channel_tensor(file, file.mean, "header field mean", input.c);
  graph.std = channel_tensor(file, file.std, "header field std", input.c);
  for (float s : graph.std) check(std::isfinite(s) && s > 0, "header field std holds ", s, ", which is not positive");
  check_tensor_uses(file);
  for (float m : graph.mean) check(std::isfinite(m), "header field mean holds ", m);
  if (integer) check_integer_bounds(graph);
  return graph;
}

}  // namespace ovsw
