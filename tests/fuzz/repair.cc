#include "tests/fuzz/repair.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "csrc/graph/ops.h"
#include "csrc/runtime/metadata.h"

namespace ovsw::fuzz {
namespace {

constexpr std::int64_t kInt32 = (std::int64_t(1) << 31) - 1;
constexpr std::uint32_t kMaxChannels = 300, kMaxSide = 64;
constexpr std::int64_t kMaxElements = 1 << 13, kMaxMacs = 1 << 18;
constexpr std::size_t kMaxOps = 14;
constexpr std::uint32_t kNew = kAbsent - 1;  // a value that there was not

using Dims = std::vector<std::uint32_t>;

// Fields of a float in the bytes of two numbers.
float as_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
std::uint32_t as_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float whole(float x) { return std::isfinite(x) ? std::floor(std::clamp(x, -32768.0f, 32767.0f)) : 0.0f; }

class Repair {
 public:
  Repair(Document& d, Random& random) : d_(d), random_(random), integer_(d.numerics == 1) {}

  void run() {
    const std::uint32_t old_channels =
        d_.outputs.empty() || d_.outputs[0] >= d_.values.size() ? 0 : d_.values[d_.outputs[0]].c;
    set_input();
    std::vector<OpFields> ops;
    std::swap(ops, d_.ops);
    if (ops.size() > kMaxOps) ops.resize(kMaxOps);
    for (OpFields& op : ops) add(op);
    if (d_.ops.empty()) {
      OpFields op;
      op.kind = std::uint16_t(integer_ ? OpKind::kConv : OpKind::kEltwise);
      op.out = kNew;
      add(op);
    }
    if (integer_ && find(Element::kF32) == kAbsent) {
      OpFields op;
      op.kind = std::uint16_t(find(Element::kI16) != kAbsent ? OpKind::kToFloat : OpKind::kConv);
      op.input = kAbsent;
      op.out = kNew;
      add(op);
      op.kind = std::uint16_t(OpKind::kToFloat);
      if (find(Element::kF32) == kAbsent) add(op);
    }
    set_outputs();
    d_.values = values_;
    set_metadata(old_channels);
  }

 private:
  ValueRecord& input_of(const OpFields& op) { return values_[op.input]; }
  static std::int64_t elements(const ValueRecord& v) { return std::int64_t(v.c) * v.h * v.w; }

  // The value that was number `old`, if it is there and of this kind; else the last or any one that is; kAbsent if
  // none.
  std::uint32_t find(Element kind, std::uint32_t old = kAbsent) {
    if (old < now_.size() && now_[old] != kAbsent && values_[now_[old]].kind == std::uint32_t(kind)) return now_[old];
    Dims found;
    for (std::uint32_t i = 0; i < values_.size(); ++i) {
      if (values_[i].kind == std::uint32_t(kind)) found.push_back(i);
    }
    if (found.empty()) return kAbsent;
    return random_.chance(70) ? found.back() : found[random_.below(found.size())];
  }

  void set_input() {
    if (d_.values.empty()) d_.values.push_back({0, 1, 4, 4});
    now_.assign(d_.values.size(), kAbsent);
    ValueRecord v = d_.values[0];
    v.kind = std::uint32_t(integer_ ? Element::kU8 : Element::kF32);
    v.c = std::clamp<std::uint32_t>(v.c, 1, 16);
    v.h = std::clamp<std::uint32_t>(v.h, 1, kMaxSide);
    v.w = std::clamp<std::uint32_t>(v.w, 1, kMaxSide);
    values_ = {v};
    most_ = {255};
    now_[0] = 0;
    d_.mean.reshape(Dtype::kF32, {v.c});
    d_.std.reshape(Dtype::kF32, {v.c});
    for (std::uint32_t c = 0; c < v.c; ++c) {
      float &mean = d_.mean.as<float>()[c], &deviation = d_.std.as<float>()[c];
      if (integer_) mean = std::clamp(mean, -256.0f, 256.0f);
      deviation = std::abs(deviation) > 0 ? std::abs(deviation) : 1.0f;
    }
  }

  // Appends the op if something can be made of it.
  void add(OpFields op) {
    const OpTraits* traits = op_traits(op.kind);
    if (!traits) {
      op.kind = std::uint16_t(1 + random_.below(15));
      traits = op_traits(op.kind);
    }
    if (traits->is(integer_ ? kFloatOnly : kIntegersOnly)) return;
    traits_ = traits;
    op.name.resize(std::min<std::size_t>(op.name.size(), 255));
    for (char& c : op.name) c = char(c & 0x7F) < 0x20 || (c & 0x7F) == 0x7F ? '_' : char(c & 0x7F);
    if (!set_reads(op)) return;
    ValueRecord out = input_of(op);
    if (!set_window(op, out)) return;
    set_channels(op, out);
    if (!set_operand(op, out)) return;
    set_weight(op, out);
    if (elements(out) > kMaxElements) return;
    set_activation(op);
    set_kinds(op, out);
    set_constants(op, out);
    if (integer_) fit(op, out);
    write(op, out);
    d_.ops.push_back(std::move(op));
  }

  bool set_reads(OpFields& op) {
    if (traits_->is(kBinary)) {
      op.input = find(Element::kBits, op.input);
    } else if (!integer_ || traits_->is(kNoEpilogue)) {
      op.input = find(Element::kF32, op.input);
    } else if (traits_->is(kOnPixels) &&
               (find(Element::kI16) == kAbsent || (op.input < now_.size() && now_[op.input] == 0))) {
      op.input = 0;
    } else {
      op.input = find(Element::kI16, op.input);
    }
    return op.input != kAbsent;
  }

  bool set_window(OpFields& op, ValueRecord& out) {
    if (traits_->is(kFlat)) {
      out.c = out.c * out.h * out.w;
      out.h = out.w = 1;
    }
    if (!traits_->window) {
      op.window_h = op.window_w = op.stride_h = op.stride_w = 1;
      op.pad_h = op.pad_w = op.flags = op.gap_h = op.gap_w = 0;
      return true;
    }
    if (!traits_->is(kDilates)) op.gap_h = op.gap_w = 0;
    op.flags &= traits_->core == Core::kAvgpool ? 3 : traits_->is(kCeils) ? 1 : 0;
    out.h = side(out.h, op.window_h, op.stride_h, op.pad_h, op.gap_h, op.flags & 1);
    out.w = side(out.w, op.window_w, op.stride_w, op.pad_w, op.gap_w, op.flags & 1);
    return true;
  }

  // How many windows there are along one side, of fields that are made to fit.
  std::uint32_t side(std::uint32_t in, std::uint16_t& window, std::uint16_t& stride, std::uint16_t& pad,
                     std::uint8_t& gap, bool ceil) {
    const int n = int(in);
    window = std::uint16_t(std::clamp<int>(window, 1, std::min(traits_->window, 40)));
    stride = std::max<std::uint16_t>(stride, 1);
    const bool half = traits_->padding == Padding::kHalf;
    if (half && pad && gap + 1 > n) gap = 0;
    const auto covered = [&] { return (window - 1) * (gap + 1) + 1; };
    const auto shrink = [&] {
      pad = std::uint16_t(std::min<int>(pad, half ? window / 2 : covered() - 1));
      return covered() > n + 2 * pad;
    };
    while (shrink()) {
      if (gap) {
        gap = std::uint8_t(gap / 2);
      } else {
        window = std::uint16_t(std::max(1, std::min<int>(window - 1, n)));
      }
    }
    const int last = n + 2 * pad - covered();
    int count = last / stride + 1;
    if (ceil) {
      count = (last + stride - 1) / stride + 1;
      if ((count - 1) * stride >= n + pad) --count;
    }
    return std::uint32_t(count);
  }

  void set_channels(OpFields& op, ValueRecord& out) {
    if (traits_->is(kPadsChannels)) {
      std::uint32_t before = op.channels_before(), after = op.channels_after();
      if (out.c + before + after > kMaxChannels) before %= 5, after %= 65;
      op.padding = before | after << 16;
      out.c += before + after;
    } else if (!traits_->is(kPadValue)) {
      op.padding = 0;
    } else {
      float pad = as_float(op.padding);
      if (!std::isfinite(pad)) pad = 0;
      if (traits_->is(kBinary)) {
        pad = std::clamp(pad, -1024.0f, 1024.0f);
      } else if (integer_) {
        pad = whole(pad);
      }
      op.padding = as_bits(pad);
    }
    if (!traits_->is(kWeights)) return;
    out.c = op.weight ? op.weight->shape[0] : 1 + random_.below(20);
    out.c = std::clamp<std::uint32_t>(out.c, 1, kMaxChannels);
    const std::int64_t pixels = std::int64_t(out.h) * out.w;
    const std::int64_t taps = std::int64_t(op.window_h) * op.window_w * input_of(op).c;
    while (out.c > 1 && (pixels * out.c > kMaxElements || pixels * taps * out.c > kMaxMacs)) out.c /= 2;
  }

  bool set_operand(OpFields& op, ValueRecord& out) {
    if (!traits_->is(kOperand)) return true;
    const auto fits = [&](const ValueRecord& v) {
      if (v.kind != std::uint32_t(integer_ ? Element::kI16 : Element::kF32)) return false;
      if (traits_->core == Core::kConcat) return v.h == out.h && v.w == out.w && v.c + out.c <= kMaxChannels;
      return v.c == out.c && ((v.h == out.h && v.w == out.w) || (v.h == 1 && v.w == 1));
    };
    op.residual = another(op.residual, fits);
    if (op.residual == kAbsent) return false;
    if (traits_->core == Core::kConcat) out.c += values_[op.residual].c;
    return true;
  }

  // The value that was number `old`, or another one that fits.
  template <typename Fits>
  std::uint32_t another(std::uint32_t old, Fits fits) {
    if (old < now_.size() && now_[old] != kAbsent && fits(values_[now_[old]])) return now_[old];
    Dims found;
    for (std::uint32_t i = 0; i < values_.size(); ++i) {
      if (fits(values_[i])) found.push_back(i);
    }
    return found.empty() ? kAbsent : found[random_.below(found.size())];
  }

  void set_weight(OpFields& op, ValueRecord& out) {
    const ValueRecord& in = input_of(op);
    if (traits_->is(kIndices)) return set_indices(op, in, out);
    if (!traits_->is(kWeights)) return op.weight.reset();
    if (!op.weight) op.weight.emplace();
    const Dtype real = !integer_ ? Dtype::kF32 : op.weight->dtype == Dtype::kI8 ? Dtype::kI8 : Dtype::kI16;
    const Dtype dtype = traits_->is(kBinary) ? Dtype::kBits : real;
    if (traits_->is(kFlat)) return op.weight->reshape(dtype, {out.c, in.c * in.h * in.w});
    std::uint32_t inputs = op.weight->shape.size() == 4 ? op.weight->shape[3] : in.c;
    if (inputs == 0 || in.c % inputs != 0) inputs = in.c;
    std::uint32_t groups = in.c / inputs;
    if (out.c % groups != 0 && out.c >= groups) out.c = out.c / groups * groups;
    if (out.c % groups != 0) inputs = in.c;
    op.weight->reshape(dtype, {out.c, op.window_h, op.window_w, inputs});
  }

  void set_indices(OpFields& op, const ValueRecord& in, ValueRecord& out) {
    if (!op.weight) op.weight.emplace();
    const std::uint32_t old = op.out < d_.values.size() ? op.out : op.bits;
    const ValueRecord wanted = old < d_.values.size() ? d_.values[old] : in;
    out.h = std::clamp<std::uint32_t>(wanted.h, 1, kMaxSide);
    out.w = std::clamp<std::uint32_t>(wanted.w, 1, kMaxSide);
    const bool gathers = traits_->core == Core::kGather;
    if (gathers) out.c = std::clamp<std::uint32_t>(wanted.c, 1, kMaxChannels);
    while (elements(out) > kMaxElements) (out.h > out.w ? out.h : out.w > 1 ? out.w : out.c) /= 2;
    op.weight->reshape(Dtype::kI32, {gathers ? out.c + out.h + out.w : 2 * (out.h + out.w)});
    auto* at = op.weight->as<std::int32_t>();
    const auto index = [](std::int32_t x, std::uint32_t n) { return std::int32_t(std::uint32_t(x) % n); };
    const auto indices = [&](std::uint32_t count, std::uint32_t n) {
      for (std::uint32_t i = 0; i < count; ++i, ++at) *at = *at == -1 ? -1 : index(*at, n);
    };
    const auto shares = [&](std::uint32_t count, std::uint32_t n) {
      for (std::uint32_t i = 0; i < count; ++i, at += 2) {
        at[1] = n > 1 ? at[1] & ((1 << 30) - 1) : 0;
        at[0] = index(at[0], at[1] ? n - 1 : n);
      }
    };
    if (gathers) {
      indices(out.c, in.c);
      indices(out.h, in.h);
      indices(out.w, in.w);
    } else {
      shares(out.h, in.h);
      shares(out.w, in.w);
    }
  }

  void set_activation(OpFields& op) {
    auto act = Act(op.activation);
    if (op.activation > 5 || traits_->is(kNoEpilogue) || (integer_ && traits_->is(kLogits))) act = Act::kNone;
    if (act == Act::kSigmoid && integer_) act = Act::kTable;
    if (act == Act::kTable && (!integer_ || traits_->is(kWeights))) act = Act::kPrelu;
    if (act == Act::kClamp || act == Act::kStep) {
      for (float* x : {&op.clamp_lo, &op.clamp_hi}) {
        if (integer_) *x = whole(*x);
        if (!std::isfinite(*x)) *x = 1;
      }
      if (act == Act::kClamp && op.clamp_lo > op.clamp_hi) std::swap(op.clamp_lo, op.clamp_hi);
    }
    op.activation = std::uint16_t(act);
  }

  // What is written, and what is added.
  void set_kinds(OpFields& op, const ValueRecord& out) {
    const bool pixels = integer_ && input_of(op).kind == std::uint32_t(Element::kU8);
    const bool was_wide = op.out < d_.values.size() && d_.values[op.out].kind == std::uint32_t(Element::kI32);
    const bool no_epilogue = traits_->is(kNoEpilogue) || (integer_ && traits_->is(kLogits));
    kind_ = !integer_ || no_epilogue                    ? Element::kF32
            : traits_->is(kWide) && !pixels && was_wide ? Element::kI32
                                                        : Element::kI16;
    const bool alone = no_epilogue || kind_ == Element::kI32;
    if (alone) {
      op.activation = 0;
      op.bits = kAbsent;
      if (op.out == kAbsent) op.out = kNew;
      if (!traits_->is(kOperand)) op.residual = kAbsent;
    } else if (op.out == kAbsent && op.bits == kAbsent) {
      op.out = kNew;
    }
    if (alone || traits_->is(kOperand) || op.residual == kAbsent) return;
    op.residual = another(op.residual, [&](const ValueRecord& v) {
      const bool kind = integer_ ? v.kind == std::uint32_t(Element::kI16) || v.kind == std::uint32_t(Element::kI32)
                                 : v.kind == std::uint32_t(Element::kF32);
      const bool spread = traits_->is(kPerChannel) && v.h == 1 && v.w == 1;
      return kind && v.c == out.c && (spread || (v.h == out.h && v.w == out.w));
    });
    if (op.residual != kAbsent && integer_ && most_[op.residual] > kInt32 / 2) op.residual = kAbsent;
  }

  void set_constants(OpFields& op, const ValueRecord& out) {
    for (Constant which : {kScale, kOffset, kSlope, kShift, kThreshold}) {
      std::optional<Tensor>& t = op.constants[which];
      const auto need = constant_need(*traits_, Numerics(d_.numerics), Act(op.activation), which);
      if (!need || (which == kThreshold && op.bits == kAbsent)) t.reset();
      if (which == kOffset && !integer_) {  // both or none
        if (op.constants[kScale] && !t) t.emplace();
        if (!op.constants[kScale]) t.reset();
      }
      if (!need || (!t && !need->always)) continue;
      if (!t) t.emplace();
      const bool one = which == kScale && need->dtype == Dtype::kF32;
      const bool table = which == kSlope && Act(op.activation) == Act::kTable;
      Dims shape{one ? 1 : table ? 257 : out.c};
      if (need->rows && !table && t->shape.size() == 2) shape.insert(shape.begin(), 2);
      t->reshape(need->dtype, shape);
    }
    if (integer_ && traits_->is(kFlat)) {
      float& scale = *op.constants[kScale]->as<float>();
      scale = std::abs(scale) > 0 ? std::abs(scale) : 1.0f;
    }
  }

  // Sums within 32 bits.
  void fit(OpFields& op, const ValueRecord& out) {
    largest_ = 32768;
    if (!traits_->max_shift) return;
    const bool adds = op.residual != kAbsent && !traits_->is(kOperand);
    const std::int64_t cap = kInt32 - (adds ? most_[op.residual] : 0);
    auto* shifts = op.constants[kShift]->as<std::uint8_t>();
    auto* offsets = op.constants[kOffset]->as<std::int32_t>();
    for (std::uint32_t c = 0; c < out.c; ++c) {
      if (shifts[c] > traits_->max_shift) shifts[c] = std::uint8_t(shifts[c] % (traits_->max_shift + 1));
      const auto offset = [&](std::int64_t most) {
        offsets[c] = std::int32_t(
            std::clamp<std::int64_t>(offsets[c], -std::max<std::int64_t>(most, 0), std::max<std::int64_t>(most, 0)));
      };
      if (traits_->is(kBinary)) {
        offset(fit_binary(op, c, cap));
      } else if (traits_->core == Core::kConv) {
        offset(fit_conv(op, c, cap));
      } else {
        const std::int64_t core = core_of(op, c);
        while (shifts[c] < traits_->max_shift && (core >> shifts[c]) + 40000 > cap) ++shifts[c];
        offset(std::min<std::int64_t>(cap - (core >> shifts[c]) - 40000, 1 << 20));
      }
    }
    if (kind_ == Element::kI32) largest_ = kInt32;
  }

  std::int64_t fit_binary(OpFields& op, std::uint32_t c, std::int64_t cap) {
    Tensor& scales = *op.constants[kScale];
    auto& scale = scales.as<std::int16_t>()[c];
    std::int16_t none = 0;
    auto& window = scales.shape.size() == 2 ? scales.as<std::int16_t>()[scales.shape[1] + c] : none;
    const Tensor& w = *op.weight;
    const double pad = std::max(1.0, std::ceil(std::abs(double(as_float(op.padding)))));
    const std::int64_t taps = std::int64_t(w.shape[1]) * w.shape[2] * w.shape[3] * std::int64_t(pad);
    scale = std::int16_t(std::max<int>(scale, 0));
    if ((scale + std::abs(int(window))) * taps + 1 > cap) {
      window = std::int16_t(window % (cap / taps / 2 + 1));
      scale = std::int16_t(scale % (cap / taps / 2));
    }
    return cap - (scale + std::abs(int(window))) * taps - 1;
  }

  std::int64_t fit_conv(OpFields& op, std::uint32_t c, std::int64_t cap) {
    Tensor& w = *op.weight;
    const bool narrow = w.dtype == Dtype::kI8, pixels = op.input == 0;
    const std::int64_t taps = std::int64_t(w.shape[1]) * w.shape[2] * w.shape[3];
    std::int64_t most = most_[op.input];
    for (std::uint32_t i = 0; pixels && i < values_[0].c; ++i) {
      most = std::max(most, 257 + std::int64_t(std::abs(d_.mean.as<float>()[i]) * 256));
    }
    if (pixels) most *= 2;
    const auto sum = [&] {
      std::int64_t all = 0;
      for (std::int64_t i = 0; i < taps; ++i) {
        all += narrow ? std::abs(w.as<std::int8_t>()[c * taps + i]) * (pixels ? 256 : 1)
                      : std::abs(w.as<std::int16_t>()[c * taps + i]);
      }
      return all * most + 2;
    };
    while (sum() > cap) {
      for (std::int64_t i = 0; i < taps; ++i) {
        if (narrow) {
          w.as<std::int8_t>()[c * taps + i] /= 2;
        } else {
          w.as<std::int16_t>()[c * taps + i] /= 2;
        }
      }
    }
    return cap - sum();
  }

  // The largest product of avgpool, mul and linear.
  std::int64_t core_of(OpFields& op, std::uint32_t c) {
    if (traits_->core == Core::kLinear) {
      Tensor& w = *op.weight;
      std::int64_t all = 0;
      for (std::uint32_t i = 0; i < w.shape[1]; ++i) {
        const std::size_t at = std::size_t(c) * w.shape[1] + i;
        all += std::abs(w.dtype == Dtype::kI8 ? int(w.as<std::int8_t>()[at]) : int(w.as<std::int16_t>()[at]));
      }
      return all * 32768;
    }
    const std::int64_t scale = std::abs(int(op.constants[kScale]->as<std::int16_t>()[c]));
    return traits_->core == Core::kMul ? (scale << 30) : scale * 32768 * op.window_h * op.window_w;
  }

  void write(OpFields& op, ValueRecord out) {
    const auto put = [&](std::uint32_t& ref, Element kind, std::int64_t most) {
      if (ref == kAbsent) return;
      out.kind = std::uint32_t(kind);
      if (ref < now_.size()) now_[ref] = std::uint32_t(values_.size());
      ref = std::uint32_t(values_.size());
      values_.push_back(out);
      most_.push_back(most);
    };
    put(op.out, kind_, kind_ == Element::kI32 ? largest_ : 32768);
    put(op.bits, Element::kBits, 1);
  }

  void set_outputs() {
    Dims outputs;
    for (std::uint32_t old : d_.outputs) {
      if (outputs.size() >= 8) break;
      const std::uint32_t v = find(Element::kF32, old);
      if (v != kAbsent && std::find(outputs.begin(), outputs.end(), v) == outputs.end()) outputs.push_back(v);
    }
    if (outputs.empty()) outputs.push_back(find(Element::kF32));
    d_.outputs = outputs;
  }

  void set_metadata(std::uint32_t old_channels) {
    const ValueRecord &in = values_[0], &out = values_[d_.outputs[0]];
    try {
      if (out.c == old_channels || random_.chance(50)) read_metadata(d_.metadata, out.c, int(std::max(in.h, in.w)));
    } catch (const std::exception&) {
      if (random_.chance(95)) d_.metadata = "{}";
    }
  }

  Document& d_;
  Random& random_;
  const bool integer_;
  const OpTraits* traits_ = nullptr;
  Element kind_ = Element::kF32;
  std::int64_t largest_ = 0;
  std::vector<ValueRecord> values_;
  std::vector<std::int64_t> most_;  // the largest number of each value
  Dims now_;                        // by old number
};

}  // namespace

void repair(Document& document, Random& random) { Repair(document, random).run(); }

}  // namespace ovsw::fuzz
