#include "csrc/graph/graph.h"

#include <algorithm>
#include <cmath>

#include "csrc/base/error.h"
#include "csrc/graph/bounds.h"

namespace ovsw {
namespace {

// Largest map, in elements: 2^27 floats are 512 MiB.
constexpr std::size_t kMaxElements = std::size_t(1) << 27;
constexpr int kMaxInputChannels = 1024;
constexpr std::int64_t kMaxInputs = 999999999;  // of an output: taps times channels
constexpr float kMaxPadValue = 1024;            // of bconv
constexpr std::uint32_t kTableSize = 257;       // of the activation table

// Numbers that an op in integers may clamp to, step to or pad with.
struct Range {
  float least, most;
  const char *one, *several;

  bool holds(float x) const { return x >= least && x <= most && x == std::floor(x); }
};
constexpr Range kNarrowRange{-32768.0f, 32767.0f, "a 16-bit integer", "16-bit integers"};
constexpr Range kWideRange{-1073741824.0f, 1073741824.0f, "an integer from -2^30 to 2^30",
                           "integers from -2^30 to 2^30"};

std::string dims(const Value& v) { return text(v.c, "x", v.h, "x", v.w); }

// Turns one record into an op, step by step; every kind of op takes the same steps.
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
    traits_ = op_traits(r_.kind);
    require(traits_ != nullptr, "kind ", r_.kind, " is unknown");
    op_.traits = traits_;
    op_.name = r_.name;
    op_.input = r_.input;
    require(integer_ || !traits_->is(kIntegersOnly), traits_->name, " is for integer numerics only");
    require(!integer_ || !traits_->is(kFloatOnly), traits_->name, " is for float numerics only");
    const Value& in = read(r_.input, "input", input_kind());
    op_.on_pixels = in.kind == Element::kU8;
    op_.wide = is_wide();
    set_shape(in);
    set_operand(in);
    set_weight();
    set_indices(in);
    set_core();
    set_activation();
    set_constants();
    set_residual();
    op_.out = write(r_.out, "out", out_kind());
    op_.bits = write(r_.bits, "bits", Element::kBits);
    require(op_.out != kAbsent || op_.bits != kAbsent, "has no output");
    return op_;
  }

 private:
  template <typename... Parts>
  void require(bool condition, const Parts&... parts) const {
    check(condition, label_, ": ", parts...);
  }
  // `has`: whether the record has a `what`, which this kind of op must not have.
  void refuse(bool has, const std::string& what) const {
    require(!has, "has ", what, ", which ", traits_->name, " does not take");
  }

  Element input_kind() const {
    if (traits_->is(kBinary)) return Element::kBits;
    if (!integer_ || traits_->is(kNoEpilogue)) return Element::kF32;
    const Element kind = graph_.values[r_.input].kind;
    if (traits_->is(kOnPixels) && kind == Element::kU8) return kind;
    return traits_->may_read_i32() && kind == Element::kI32 ? kind : Element::kI16;
  }

  bool is_wide() const {
    if (!integer_ || !traits_->may_be_wide()) return false;
    if (r_.out != kAbsent) return graph_.values[r_.out].kind == Element::kI32;
    return r_.threshold != kAbsent && file_.tensors[r_.threshold].dtype == Dtype::kI32;
  }

  Element out_kind() const {
    if (!integer_ || traits_->is(kLogits) || traits_->is(kNoEpilogue)) return Element::kF32;
    return op_.wide ? Element::kI32 : Element::kI16;
  }

  const Value& read(std::uint32_t ref, const char* what, Element kind) const {
    require(written_[ref], what, " (value ", ref, ") is read before it is written");
    const Value& v = graph_.values[ref];
    require(v.kind == kind, what, " (value ", ref, ") is ", element_name(v.kind), ", expected ", element_name(kind));
    return v;
  }

  std::uint32_t write(std::uint32_t ref, const char* what, Element kind) {
    if (ref == kAbsent) return ref;
    require(!written_[ref], what, " (value ", ref, ") is written twice");
    written_[ref] = true;
    const Value& v = graph_.values[ref];
    const Value expected{kind, op_.shape.out_c, op_.shape.out_h, op_.shape.out_w};
    require(v.kind == kind && v.c == expected.c && v.h == expected.h && v.w == expected.w, what, " (value ", ref,
            ") is ", element_name(v.kind), " ", dims(v), ", expected ", element_name(kind), " ", dims(expected));
    return ref;
  }

  const TensorView* tensor(std::uint32_t ref, const char* what, Dtype dtype,
                           const std::vector<std::uint32_t>& shape) const {
    require(ref != kAbsent, what, " is missing");
    const TensorView& t = file_.tensors[ref];
    require(t.dtype == dtype, what, " (tensor ", ref, ") has dtype ", int(t.dtype), ", expected ", int(dtype));
    require(t.shape == shape, what, " (tensor ", ref, ") has shape ", joined(t.shape), ", expected ", joined(shape));
    if (dtype == Dtype::kF32) require_finite<float>(t, ref, what);
    if (dtype == Dtype::kF64) require_finite<double>(t, ref, what);
    return &t;
  }

  static std::string joined(const std::vector<std::uint32_t>& shape) {
    std::string all;
    for (std::uint32_t d : shape) all += text(all.empty() ? "" : "x", d);
    return all;
  }

  template <typename T>
  void require_finite(const TensorView& t, std::uint32_t ref, const char* what) const {
    const auto* data = reinterpret_cast<const T*>(t.data);
    const bool finite = std::all_of(data, data + t.bytes / sizeof(T), [](T x) { return std::isfinite(x); });
    require(finite, what, " (tensor ", ref, ") holds NaN or infinity");
  }

  void set_shape(const Value& in) {
    Shape& s = op_.shape;
    s = {in.h, in.w, in.c, in.h, in.w, in.c, 1, 1, 1, 1, 0, 0, 0, 0, 1};
    if (traits_->window) {
      set_window();
    } else {
      const bool pixel = r_.window_h == 1 && r_.window_w == 1 && r_.stride_h == 1 && r_.stride_w == 1;
      refuse(!pixel || r_.pad_h != 0 || r_.pad_w != 0, "a window");
    }
    refuse((r_.gap_h != 0 || r_.gap_w != 0) && !traits_->is(kDilates), "dilation");
    refuse(r_.ceil && !traits_->is(kCeils), "the flag ceil");
    refuse(r_.exclude_pad && traits_->core != Core::kAvgpool, "the flag exclude_pad");
    op_.exclude_pad = r_.exclude_pad;
    set_padding();
    if (traits_->is(kFlat)) {
      const std::size_t features = in.pixels() * std::size_t(in.c);
      require(features <= (1u << 20), "has ", features, " input features, expected at most ", 1 << 20);
      s = {1, 1, int(features), 1, 1, int(features), 1, 1, 1, 1, 0, 0, 0, 0, 1};
    }
  }

  // Channels to add, or the value of pixels outside the map.
  void set_padding() {
    if (traits_->is(kPadValue)) {
      op_.pad_value = r_.pad_value;
      require(std::isfinite(r_.pad_value), "pad_value is ", r_.pad_value);
      if (traits_->is(kBinary)) {
        require(std::abs(r_.pad_value) <= kMaxPadValue, "pad_value is ", r_.pad_value, ", expected -", kMaxPadValue,
                " to ", kMaxPadValue);
      } else if (integer_) {
        const Range& range = graph_.values[r_.input].kind == Element::kI32 ? kWideRange : kNarrowRange;
        require(range.holds(r_.pad_value), "pad_value is ", r_.pad_value, ", expected ", range.one);
      }
      return;
    }
    if (!traits_->is(kPadsChannels)) refuse(r_.channels_before != 0 || r_.channels_after != 0, "channels to pad");
    op_.channels_before = r_.channels_before;
    op_.shape.out_c += r_.channels_before + r_.channels_after;
  }

  void set_window() {
    Shape& s = op_.shape;
    s.window_h = r_.window_h;
    s.window_w = r_.window_w;
    s.stride_h = r_.stride_h;
    s.stride_w = r_.stride_w;
    s.pad_h = r_.pad_h;
    s.pad_w = r_.pad_w;
    s.gap_h = r_.gap_h;
    s.gap_w = r_.gap_w;
    const int most = traits_->window;
    require(s.window_h >= 1 && s.window_w >= 1 && s.window_h <= most && s.window_w <= most, "window is ", s.window_h,
            "x", s.window_w, ", expected 1 to ", most);
    require(s.stride_h >= 1 && s.stride_w >= 1, "stride is ", s.stride_h, "x", s.stride_w);
    const int rows = (s.window_h - 1) * (s.gap_h + 1) + 1, columns = (s.window_w - 1) * (s.gap_w + 1) + 1;
    require(s.pad_h < rows && s.pad_w < columns, "padding ", s.pad_h, "x", s.pad_w, " is not smaller than the window");
    require(s.in_h + 2 * s.pad_h >= rows && s.in_w + 2 * s.pad_w >= columns, "window ", rows, "x", columns,
            " is larger than the padded map");
    if (traits_->padding == Padding::kHalf) {
      require(2 * s.pad_h <= s.window_h && 2 * s.pad_w <= s.window_w, "is padded by more than half its window");
    }
    s.out_h = windows(s.in_h, rows, s.stride_h, s.pad_h);
    s.out_w = windows(s.in_w, columns, s.stride_w, s.pad_w);
    if (!traits_->is(kWeights)) {
      const bool reach = (s.pad_h == 0 || s.gap_h < s.in_h) && (s.pad_w == 0 || s.gap_w < s.in_w);
      require(reach, "may have a window whose taps all lie outside the map");
    }
  }

  // The number of windows of `size` pixels along one side.
  int windows(int in, int size, int stride, int pad) const {
    const int last = in + 2 * pad - size;
    if (!r_.ceil) return last / stride + 1;
    const int count = (last + stride - 1) / stride + 1;
    return (count - 1) * stride >= in + pad ? count - 1 : count;
  }

  // The second operand of mul and concat.
  void set_operand(const Value& in) {
    if (!traits_->is(kOperand)) return;
    require(r_.residual != kAbsent, "residual, its second operand, is missing");
    const bool concat = traits_->core == Core::kConcat;
    const Value& v = read(r_.residual, "residual", concat || !integer_ ? in.kind : Element::kI16);
    if (!concat) return;
    require(v.h == in.h && v.w == in.w, "residual (value ", r_.residual, ") is ", dims(v), ", the input is ", dims(in));
    op_.shape.out_c = in.c + v.c;
  }

  // The number of output channels is the first dimension of the weights.
  void set_weight() {
    if (!traits_->is(kWeights)) return refuse(r_.weight != kAbsent && !traits_->is(kIndices), "a weight");
    require(r_.weight != kAbsent, "weight is missing");
    const TensorView& t = file_.tensors[r_.weight];
    Shape& s = op_.shape;
    s.out_c = int(t.shape[0]);
    if (traits_->is(kDilates) && t.shape.size() == 4 && std::uint32_t(s.in_c) % t.shape[3] == 0) {
      s.groups = s.in_c / int(t.shape[3]);
      require(s.out_c % s.groups == 0, "has ", s.groups, " groups, which do not divide its ", s.out_c,
              " output channels");
    }
    // Sizes of patches, dots and the border correction are int32.
    const std::int64_t inputs = std::int64_t(s.in_c) * s.window_h * s.window_w;
    require(inputs <= kMaxInputs, "has ", inputs, " inputs per output, expected at most ", kMaxInputs);
    const auto u = [](int n) { return std::uint32_t(n); };
    std::vector<std::uint32_t> shape{u(s.out_c), u(s.window_h), u(s.window_w), u(s.group_in())};
    if (traits_->is(kFlat)) shape = {u(s.out_c), u(s.in_c)};
    const Dtype real = !integer_ ? Dtype::kF32 : t.dtype == Dtype::kI8 ? Dtype::kI8 : Dtype::kI16;
    op_.weight = tensor(r_.weight, "weight", traits_->is(kBinary) ? Dtype::kBits : real, shape);
  }

  // gather and bilinear: the output has the shape of the value it is written to, the weight says where it comes from.
  void set_indices(const Value& in) {
    if (!traits_->is(kIndices)) return;
    const std::uint32_t written = r_.out != kAbsent ? r_.out : r_.bits;
    require(written != kAbsent, "has no output");
    const bool gathers = traits_->core == Core::kGather;
    const Value& v = graph_.values[written];
    Shape& s = op_.shape;
    s.out_h = v.h;
    s.out_w = v.w;
    if (gathers) s.out_c = v.c;
    const auto count = std::uint32_t(gathers ? s.out_c + s.out_h + s.out_w : 2 * (s.out_h + s.out_w));
    op_.weight = tensor(r_.weight, "weight", Dtype::kI32, {count});
    const auto* at = op_.weights<std::int32_t>();
    if (gathers) {
      at = check_indices(at, s.out_c, in.c, "channel");
      at = check_indices(at, s.out_h, in.h, "row");
      check_indices(at, s.out_w, in.w, "column");
    } else {
      at = check_shares(at, s.out_h, in.h, "row");
      check_shares(at, s.out_w, in.w, "column");
    }
  }

  // The indices of gather along one side; returns their end.
  const std::int32_t* check_indices(const std::int32_t* at, int count, int in, const char* what) const {
    for (int i = 0; i < count; ++i) {
      require(at[i] >= -1 && at[i] < in, "takes ", what, " ", i, " from ", what, " ", at[i], ", the input has ", in);
    }
    return at + count;
  }

  // Those of bilinear, each with the share of the next row or column.
  const std::int32_t* check_shares(const std::int32_t* at, int count, int in, const char* what) const {
    for (int i = 0; i < count; ++i) {
      const std::int32_t index = at[2 * i], share = at[2 * i + 1];
      require(share >= 0 && share < 1 << 30, "has a share of ", share, " for ", what, " ", i,
              ", expected 0 to 2^30 - 1");
      require(index >= 0 && index < in - (share != 0), "takes ", what, " ", i, " from ", what, " ", index,
              share ? " and the next, the input has " : ", the input has ", in);
    }
    return at + 2 * count;
  }

  void set_core() {
    op_.core = traits_->core;
    const Shape& s = op_.shape;
    if (traits_->is(kWeights) && (s.groups > 1 || s.gap_h > 0 || s.gap_w > 0)) {
      op_.core = traits_->is(kBinary) ? Core::kBconvAny : Core::kConvAny;
    } else if (op_.on_pixels) {
      op_.core = Core::kConvPixels;
    }
  }

  void set_activation() {
    require(r_.activation <= std::uint16_t(Act::kTable), "activation ", r_.activation, " is unknown");
    op_.act = Act(r_.activation);
    if (traits_->is(kNoEpilogue)) refuse(op_.act != Act::kNone, "an activation");
    require(op_.act != Act::kSigmoid || !integer_, "has sigmoid, which integer numerics do not take");
    if (op_.act == Act::kTable) {
      require(integer_, "has a table, which float numerics do not take");
      refuse(traits_->is(kWeights) || traits_->is(kIndices), "a table");
      require(!op_.wide, "has a table, which wide ops do not take");
    }
    op_.clamp_lo = r_.clamp_lo;
    op_.clamp_hi = r_.clamp_hi;
    if (op_.act == Act::kClamp) {
      require(r_.clamp_lo <= r_.clamp_hi, "clamps to [", r_.clamp_lo, ", ", r_.clamp_hi, "]");
    }
    if (op_.act == Act::kStep) {
      require(std::isfinite(r_.clamp_lo) && std::isfinite(r_.clamp_hi), "steps from ", r_.clamp_lo, " to ",
              r_.clamp_hi);
    }
    if (!integer_) return;
    const Range& range = op_.wide ? kWideRange : kNarrowRange;
    const bool whole = range.holds(op_.clamp_lo) && range.holds(op_.clamp_hi);
    if (op_.act == Act::kClamp) {
      require(whole, "clamps to [", op_.clamp_lo, ", ", op_.clamp_hi, "], expected ", range.several);
    } else if (op_.act == Act::kStep) {
      require(whole, "steps from ", op_.clamp_lo, " to ", op_.clamp_hi, ", expected ", range.several);
    } else {
      op_.clamp_lo = range.least;
      op_.clamp_hi = range.most;
    }
  }

  void set_constants() {
    const std::uint32_t refs[] = {r_.scale, r_.offset, r_.slope, r_.shift, r_.threshold};
    for (Constant which : {kScale, kOffset, kSlope, kShift, kThreshold}) {
      const std::uint32_t ref = refs[which];
      const char* name = kConstantNames[which];
      const auto need = constant_need(*traits_, file_.numerics, op_.wide, op_.act, which);
      if (which == kSlope && !need) require(ref == kAbsent, "has a slope without prelu");
      if (!need) refuse(ref != kAbsent, text("a tensor as its ", name));
      if (!need || (ref == kAbsent && !need->always)) continue;
      const bool one = which == kScale && need->dtype == Dtype::kF32;  // of logits
      const bool table = which == kSlope && op_.act == Act::kTable;
      std::vector<std::uint32_t> shape{one ? 1u : table ? kTableSize : std::uint32_t(op_.shape.out_c)};
      if (need->rows && ref != kAbsent && file_.tensors[ref].shape.size() == 2) shape.insert(shape.begin(), 2);
      op_.constants[which] = tensor(ref, name, need->dtype, shape);
    }
    require(r_.threshold == kAbsent || r_.bits != kAbsent, "has a threshold without bits");
    require((op_.constants[kScale] == nullptr) == (op_.constants[kOffset] == nullptr) || integer_,
            "has only one of scale and offset");
    if (integer_ && traits_->is(kFlat)) {
      const float scale = *op_.constant<float>(kScale);
      require(scale > 0, "scale is ", scale, ", expected a positive number");
    }
  }

  void set_residual() {
    op_.residual = r_.residual;
    if (traits_->is(kNoEpilogue)) refuse(r_.residual != kAbsent || r_.bits != kAbsent, "a residual or bits");
    if (r_.residual != kAbsent && traits_->core != Core::kConcat) {
      const bool is_i32 = integer_ && graph_.values[r_.residual].kind == Element::kI32;
      const Element kind = !integer_ ? Element::kF32 : is_i32 ? Element::kI32 : Element::kI16;
      const Value& v = read(r_.residual, "residual", kind);
      const Shape& s = op_.shape;
      op_.per_channel = traits_->is(kPerChannel) && v.h == 1 && v.w == 1 && (s.out_h > 1 || s.out_w > 1);
      require(v.c == s.out_c && (op_.per_channel || (v.h == s.out_h && v.w == s.out_w)), "residual (value ",
              r_.residual, ") is ", dims(v), ", the output is ", dims({v.kind, s.out_c, s.out_h, s.out_w}));
    }
    if (integer_ && out_kind() == Element::kF32) {
      require(op_.act == Act::kNone && op_.residual == kAbsent && r_.bits == kAbsent,
              "writes f32, which takes no residual, activation or bits");
    }
  }

  const File& file_;
  const Graph& graph_;
  const OpRecord& r_;
  const bool integer_;
  std::vector<bool>& written_;
  const std::string label_;
  const OpTraits* traits_ = nullptr;
  Op op_{};
};

std::vector<float> channel_tensor(const File& file, std::uint32_t ref, const char* what, int channels) {
  const TensorView& t = file.tensors[ref];
  check(t.dtype == Dtype::kF32 && t.shape.size() == 1 && int(t.shape[0]) == channels, what, " (tensor ", ref,
        ") must hold one f32 for each of the ", channels, " input channels");
  const auto* data = reinterpret_cast<const float*>(t.data);
  return {data, data + channels};
}

// Every tensor is used once, so a loaded network is larger than its file by a constant at most.
void check_tensor_uses(const File& file) {
  std::vector<std::uint32_t> uses(file.tensors.size(), 0);
  ++uses[file.mean];
  ++uses[file.std];
  for (const OpRecord& op : file.ops) {
    for (std::uint32_t ref : {op.weight, op.scale, op.offset, op.slope, op.shift, op.threshold}) {
      if (ref != kAbsent) ++uses[ref];
    }
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    check(uses[i] == 1, "tensor ", i, ": is referred to ", uses[i], " times, expected once");
  }
}

}  // namespace

std::int64_t Graph::zero(int channel) const {
  return std::int64_t(std::floor(double(mean[std::size_t(channel)]) * 65280.0 + 0.5));
}

double Op::macs() const {
  const double size = double(taps()) * shape.group_in();
  return traits->is(kWeights) ? size * shape.out_h * shape.out_w * shape.out_c : 0.0;
}

double Op::work() const {
  const double elements = double(shape.out_h) * shape.out_w * shape.out_c;
  if (traits->is(kWeights)) return macs();
  const bool exponentials = traits->core == Core::kSoftmax || traits->core == Core::kLogSoftmax;
  return elements * (exponentials ? 16.0 : double(taps()));
}

Graph build_graph(const File& file, const std::vector<std::uint32_t>& given) {
  Graph graph;
  graph.numerics = file.numerics;
  const bool integer = file.numerics == Numerics::kInteger;
  for (std::size_t i = 0; i < file.values.size(); ++i) {
    const ValueRecord& r = file.values[i];
    check(r.kind <= std::uint32_t(integer ? Element::kU8 : Element::kBits), "value ", i, ": kind ", r.kind,
          " is unknown");
    const std::uint64_t elements = std::uint64_t(r.c) * r.h * r.w;  // at most 2^60
    check(elements <= kMaxElements, "value ", i, ": ", r.c, "x", r.h, "x", r.w, " is over the limit of ", kMaxElements,
          " elements");
    graph.values.push_back({Element(r.kind), int(r.c), int(r.h), int(r.w)});
  }
  const Value& input = graph.values[0];
  const Element input_kind = integer ? Element::kU8 : Element::kF32;
  check(input.kind == input_kind, "value 0 (the input) must be ", element_name(input_kind));
  check(input.c <= kMaxInputChannels, "value 0 (the input) has ", input.c, " channels, expected at most ",
        kMaxInputChannels);
  std::vector<bool> written(graph.values.size(), false);
  for (std::uint32_t v : given) written.at(v) = true;
  for (std::size_t i = 0; i < file.ops.size(); ++i) graph.ops.push_back(OpBuilder(file, graph, i, &written).build());
  for (std::size_t i = 0; i < written.size(); ++i) check(written[i], "value ", i, " is never written");
  graph.outputs = file.outputs;
  for (std::uint32_t v : graph.outputs) {
    check(graph.values[v].kind == Element::kF32, "header field output (value ", v, ") must be f32");
  }
  graph.mean = channel_tensor(file, file.mean, "header field mean", input.c);
  graph.std = channel_tensor(file, file.std, "header field std", input.c);
  for (float s : graph.std) check(std::isfinite(s) && s > 0, "header field std holds ", s, ", which is not positive");
  check_tensor_uses(file);
  for (float m : graph.mean) check(std::isfinite(m), "header field mean holds ", m);
  if (integer) check_integer_bounds(graph, given);
  return graph;
}

}  // namespace ovsw
