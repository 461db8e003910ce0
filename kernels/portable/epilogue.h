// The second half of every kernel, for the channels of one output pixel. An epilogue is made once per call from the
// arguments; block() takes up to 64 channels of the core's result through its steps: scale, residual, clamp,
// activation, store, signs. Steps that few networks need are calls, so that the others stay in registers.
#pragma once

#include "kernels/portable/config.h"
#include "kernels/portable/exponential.h"
#include "kernels/portable/kernels.h"

namespace ovsw::OVSW_ISA::portable {

// n flags as bits, the first one lowest. Eight bytes of 0/1 at a time: byte i holds b_i at bit 8i; the multiplier is
// the sum of 2^(7k), k = 1..8, so the product has b_i at bit 8i + 7(8 - i) = 56 + i, and no two terms meet there.
OVSW_INLINE std::uint64_t join_flags(const std::uint8_t* flags, int n) {
  std::uint64_t word = 0;
  for (int i = 0; i < ceil_div(n, 8); ++i) {
    std::uint64_t bytes;
    std::memcpy(&bytes, flags + 8 * i, 8);
    word |= ((bytes * 0x0102040810204080ull) >> 56) << (8 * i);
  }
  return word;
}

template <typename T>
OVSW_INLINE std::uint64_t signs(const T* v, int n) {
  alignas(8) std::uint8_t flags[kWordBits] = {};
  for (int j = 0; j < n; ++j) flags[j] = v[j] >= 0;
  return join_flags(flags, n);
}

// The same of v - threshold.
template <typename T, typename U>
__attribute__((noinline)) std::uint64_t signs_from(const T* v, const U* threshold, int n) {
  alignas(8) std::uint8_t flags[kWordBits] = {};
  for (int j = 0; j < n; ++j) flags[j] = v[j] >= threshold[j];
  return join_flags(flags, n);
}

template <typename T>
OVSW_INLINE void clamp(T* v, int n, T lo, T hi) {
  for (int j = 0; j < n; ++j) {
    v[j] = v[j] < lo ? lo : v[j];
    v[j] = v[j] > hi ? hi : v[j];
  }
}

// The constants of an activation. Passed by value, so that the epilogue itself is never in memory.
template <typename T, typename Slope>
struct Activation {
  Act kind;
  T lo, hi;
  const Slope *slope, *positive;

  explicit Activation(const KernelArgs& a)
      : kind(a.act),
        lo(T(a.lo)),
        hi(T(a.hi)),
        slope(a.constant<Slope>(kSlope)),
        positive(a.constant<Slope>(kPositive)) {}
};

template <Numerics N>
class Epilogue;

template <>
class Epilogue<Numerics::kFloat> {
 public:
  using Value = float;
  static constexpr int kBlock = kWordBits;  // channels at a time where fewer than a whole word are left

  explicit Epilogue(const KernelArgs& a)
      : bits(a.bits),
        channels(a.shape.out_c),
        scale_(a.constants[kWindow] ? nullptr : a.constant<double>(kScale)),
        offset_(a.constant<double>(kOffset)),
        residual_(static_cast<const float*>(a.residual.data)),
        per_channel_(a.per_channel),
        act_(a),
        threshold_(a.constant<float>(kThreshold)),
        out_(static_cast<float*>(a.out.data)) {}

  // Channels [c, c + n), which begin at element `at` of the maps. Returns their signs if wanted. With a window scale
  // the kernel has already multiplied by the scales.
  template <typename Acc>
  OVSW_INLINE std::uint64_t block(const Acc* acc, std::int64_t at, int c, int n) const {
    float z[kWordBits];
    affine(acc, residual_ ? residual_ + (per_channel_ ? c : at) : nullptr, c, n, z);
    if (act_.kind == Act::kClamp) {
      clamp(z, n, act_.lo, act_.hi);
    } else if (act_.kind != Act::kNone) {
      activate(act_, z, c, n);
    }
    if (out_) std::memcpy(out_ + at, z, std::size_t(n) * sizeof(float));
    if (!bits) return 0;
    return threshold_ ? signs_from(z, threshold_ + c, n) : signs(z, n);
  }

  std::uint64_t* const bits;
  const int channels;

 private:
  template <typename Acc>
  OVSW_INLINE void affine(const Acc* acc, const float* residual, int c, int n, float* z) const {
    if (scale_) {
      const double *scale = scale_ + c, *offset = offset_ + c;
      if (residual) {
        for (int j = 0; j < n; ++j) z[j] = float(acc[j] * scale[j] + offset[j] + double(residual[j]));
      } else {
        for (int j = 0; j < n; ++j) z[j] = float(acc[j] * scale[j] + offset[j]);
      }
    } else if (offset_) {
      for (int j = 0; j < n; ++j) {
        const double sum = double(acc[j]) + offset_[c + j];
        z[j] = float(residual ? sum + double(residual[j]) : sum);
      }
    } else if (residual) {
      for (int j = 0; j < n; ++j) z[j] = float(double(acc[j]) + double(residual[j]));
    } else {
      for (int j = 0; j < n; ++j) z[j] = float(acc[j]);
    }
  }

  static __attribute__((noinline)) void activate(Activation<float, float> act, float* z, int c, int n) {
    if (act.kind == Act::kPrelu) {
      for (int j = 0; j < n; ++j) {
        const float high = act.positive ? z[j] * act.positive[c + j] : z[j];
        z[j] = z[j] >= 0.0f ? high : z[j] * act.slope[c + j];
      }
    } else if (act.kind == Act::kStep) {
      for (int j = 0; j < n; ++j) z[j] = z[j] >= 0.0f ? act.hi : act.lo;
    } else if (act.kind == Act::kSigmoid) {
      for (int j = 0; j < n; ++j) z[j] = float(1.0 / (1.0 + exponential(-double(z[j]))));
    }
  }

  const double *scale_, *offset_;
  const float* residual_;
  bool per_channel_;
  Activation<float, float> act_;
  const float* threshold_;
  float* out_;
};

template <>
class Epilogue<Numerics::kInteger> {
 public:
  using Value = std::int16_t;
  static constexpr int kBlock = 16;

  // The arguments must live as long as the epilogue.
  explicit Epilogue(const KernelArgs& a)
      : bits(a.bits),
        channels(a.shape.out_c),
        residual16_(a.residual.as<const std::int16_t>(Element::kI16)),
        residual32_(a.residual.as<const std::int32_t>(Element::kI32)),
        per_channel_(a.per_channel),
        act_(a),
        threshold_(a.constant<std::int16_t>(kThreshold)),
        out16_(a.out.as<std::int16_t>(Element::kI16)),
        wide_(a.wide ? &a : nullptr) {}

  template <typename Q>
  OVSW_INLINE std::uint64_t block(const Q* q, std::int64_t at, int c, int n) const {
    if (wide_) return ovsw::OVSW_PORTABLE::portable::wide_block(*wide_, q, at, c, n);
    if (!residual16_ && !residual32_) {
      Q v[kWordBits];
      for (int j = 0; j < n; ++j) v[j] = q[j];
      return finish(v, at, c, n);
    }
    std::int32_t v[kWordBits];
    const std::int64_t from = per_channel_ ? c : at;
    if (residual16_) {
      for (int j = 0; j < n; ++j) v[j] = std::int32_t(q[j]) + residual16_[from + j];
    } else {
      for (int j = 0; j < n; ++j) v[j] = std::int32_t(q[j]) + residual32_[from + j];
    }
    return finish(v, at, c, n);
  }

  // Whether values are only clamped and stored as 16 bits.
  bool only_clamps() const {
    return out16_ && !bits && !residual16_ && !residual32_ && (act_.kind == Act::kNone || act_.kind == Act::kClamp);
  }

  // Does that for a vector of channels from element `at` of the map on.
  template <typename Vector>
  OVSW_INLINE void put(Vector v, std::int64_t at) const {
    using T = __typeof__(v[0]);
    typedef std::int16_t Narrow __attribute__((vector_size(sizeof v / sizeof v[0] * sizeof(std::int16_t))));
    const Vector lo = Vector{} + T(act_.lo), hi = Vector{} + T(act_.hi);
    v = v < lo ? lo : v;
    v = v > hi ? hi : v;
    const Narrow narrow = __builtin_convertvector(v, Narrow);
    std::memcpy(out16_ + at, &narrow, sizeof narrow);
  }

  std::uint64_t* const bits;
  const int channels;

 private:
  static OVSW_INLINE std::int32_t saturate(std::int32_t x) { return x < -32768 ? -32768 : x > 32767 ? 32767 : x; }

  // The steps after the sum, except store and signs.
  template <typename T>
  static __attribute__((noinline)) void activate(Activation<std::int32_t, std::int16_t> act, T* v, int c, int n) {
    if (act.kind == Act::kStep) {
      for (int j = 0; j < n; ++j) v[j] = T(v[j] >= 0 ? act.hi : act.lo);
      return;
    }
    clamp(v, n, T(act.lo), T(act.hi));
    if (act.kind == Act::kTable) {  // 256 steps of 256, straight lines between their ends
      for (int j = 0; j < n; ++j) {
        const std::int32_t i = (std::int32_t(v[j]) + 32768) >> 8, f = v[j] & 255;
        v[j] = T((act.slope[i] * (256 - f) + act.slope[i + 1] * f + 128) >> 8);
      }
      return;
    }
    for (int j = 0; j < n; ++j) {
      const std::int32_t u = 2 * std::int32_t(v[j]) + 1;
      const std::int32_t high = act.positive ? saturate((u * act.positive[c + j]) >> 15) : std::int32_t(v[j]);
      v[j] = T(v[j] >= 0 ? high : saturate((u * act.slope[c + j]) >> 15));
    }
  }

  // T is the type of the sums.
  template <typename T>
  OVSW_INLINE std::uint64_t finish(T* v, std::int64_t at, int c, int n) const {
    if (act_.kind == Act::kNone || act_.kind == Act::kClamp) {
      clamp(v, n, T(act_.lo), T(act_.hi));
    } else {
      T w[kWordBits];  // a copy, so that v stays in registers where there is no such activation
      for (int j = 0; j < n; ++j) w[j] = v[j];
      activate(act_, w, c, n);
      for (int j = 0; j < n; ++j) v[j] = w[j];
    }
    if (out16_) {
      for (int j = 0; j < n; ++j) out16_[at + j] = std::int16_t(v[j]);
    }
    if (!bits) return 0;
    if (!threshold_) return signs(v, n);
    T w[kWordBits];
    for (int j = 0; j < n; ++j) w[j] = v[j];
    return signs_from(w, threshold_ + c, n);
  }

  const std::int16_t* residual16_;
  const std::int32_t* residual32_;
  bool per_channel_;
  Activation<std::int32_t, std::int16_t> act_;
  const std::int16_t* threshold_;
  std::int16_t* out16_;
  const KernelArgs* wide_;  // null if the op is not wide
};

// fn(a number of the input's type)
template <Numerics N, typename Fn>
OVSW_INLINE void with_input(const KernelArgs& args, Fn fn) {
  if constexpr (N == Numerics::kInteger) {
    if (args.in.kind == Element::kI32) return fn(std::int32_t());
  }
  fn(typename Epilogue<N>::Value());
}

// Channels [first, last) of output pixel `pixel`; acc has a value for each of all channels.
template <typename E, typename Acc>
OVSW_INLINE void finish_pixel(const E& e, const Acc* acc, std::int64_t pixel, int first, int last) {
  const std::int64_t at = pixel * e.channels;
  std::uint64_t* bits = e.bits ? e.bits + pixel * ceil_div(e.channels, kWordBits) : nullptr;
  for (int c0 = first; c0 < last; c0 += kWordBits) {
    std::uint64_t word = 0;
    if (last - c0 >= kWordBits) {  // constant trip counts: vectorised without tails
      word = e.block(acc + c0, at + c0, c0, kWordBits);
    } else {
      int c = c0;
      for (; c + E::kBlock <= last; c += E::kBlock) word |= e.block(acc + c, at + c, c, E::kBlock) << (c - c0);
      if (c < last) word |= e.block(acc + c, at + c, c, last - c) << (c - c0);
    }
    if (bits) bits[c0 / kWordBits] = word;
  }
}

// The same as a function call, for kernels whose core takes most of the time: shared code saves 200 kB of a library for
// ARM.
template <typename E, typename Acc>
__attribute__((noinline)) void finish_pixel_call(const E& e, const Acc* acc, std::int64_t pixel, int first, int last) {
  finish_pixel(e, acc, pixel, first, last);
}

}  // namespace ovsw::OVSW_ISA::portable
