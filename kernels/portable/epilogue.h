// The second half of every kernel, for the channels of one output pixel. An epilogue is made once per call from the
// arguments; its block() takes up to 64 channels of the core's result through its parts: scale, residual, clamp,
// activation, store, signs.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::plain {

// The signs of n values as bits, first value lowest. Eight bytes of 0/1 at a time: byte i holds b_i at bit 8i; the
// multiplier is the sum of 2^(7k), k = 1..8, so the product has b_i at bit 8i + 7(8 - i) = 56 + i, and no two terms
// meet there.
template <typename T>
OVSW_INLINE std::uint64_t signs(const T* v, int n) {
  alignas(8) std::uint8_t flags[kWordBits] = {};
  for (int j = 0; j < n; ++j) flags[j] = v[j] >= 0;
  std::uint64_t word = 0;
  for (int i = 0; i < ceil_div(n, 8); ++i) {
    std::uint64_t bytes;
    std::memcpy(&bytes, flags + 8 * i, 8);
    word |= ((bytes * 0x0102040810204080ull) >> 56) << (8 * i);
  }
  return word;
}

template <typename T>
OVSW_INLINE void clamp(T* v, int n, T lo, T hi) {
  for (int j = 0; j < n; ++j) {
    v[j] = v[j] < lo ? lo : v[j];
    v[j] = v[j] > hi ? hi : v[j];
  }
}

template <Numerics N>
class Epilogue;

template <>
class Epilogue<Numerics::kFloat> {
 public:
  using Value = float;
  static constexpr int kBlock = kWordBits;  // channels at a time, where there is not a whole word of them

  explicit Epilogue(const KernelArgs& a)
      : bits(a.bits),
        channels(a.shape.out_c),
        scale_(a.constant<double>(kScale)),
        offset_(a.constant<double>(kOffset)),
        residual_(static_cast<const float*>(a.residual.data)),
        act_(a.act),
        lo_(a.lo),
        hi_(a.hi),
        slope_(a.constant<float>(kSlope)),
        out_(static_cast<float*>(a.out.data)) {}

  // Channels [c, c + n), which are element `at` of the maps and on. Returns their signs, if wanted.
  template <typename Acc>
  OVSW_INLINE std::uint64_t block(const Acc* acc, std::int64_t at, int c, int n) const {
    float z[kWordBits];
    affine(acc, residual_ ? residual_ + at : nullptr, c, n, z);
    if (act_ == Act::kClamp) {
      clamp(z, n, lo_, hi_);
    } else if (act_ == Act::kPrelu) {
      for (int j = 0; j < n; ++j) z[j] = z[j] >= 0.0f ? z[j] : z[j] * slope_[c + j];
    }
    if (out_) std::memcpy(out_ + at, z, std::size_t(n) * sizeof(float));
    return bits ? signs(z, n) : 0;
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
    } else if (residual) {
      for (int j = 0; j < n; ++j) z[j] = float(double(acc[j]) + double(residual[j]));
    } else {
      for (int j = 0; j < n; ++j) z[j] = float(acc[j]);
    }
  }

  const double *scale_, *offset_;
  const float* residual_;
  Act act_;
  float lo_, hi_;
  const float* slope_;
  float* out_;
};

template <>
class Epilogue<Numerics::kInteger> {
 public:
  using Value = std::int16_t;
  static constexpr int kBlock = 16;

  explicit Epilogue(const KernelArgs& a)
      : bits(a.bits),
        channels(a.shape.out_c),
        residual16_(a.residual.as<const std::int16_t>(Element::kI16)),
        residual32_(a.residual.as<const std::int32_t>(Element::kI32)),
        lo_(std::int32_t(a.lo)),
        hi_(std::int32_t(a.hi)),
        slope_(a.constant<std::int16_t>(kSlope)),
        out16_(a.out.as<std::int16_t>(Element::kI16)),
        out32_(a.out.as<std::int32_t>(Element::kI32)) {}

  template <typename Q>
  OVSW_INLINE std::uint64_t block(const Q* q, std::int64_t at, int c, int n) const {
    if (out32_) {
      for (int j = 0; j < n; ++j) out32_[at + j] = q[j];
      return 0;
    }
    if (!residual16_ && !residual32_) {
      Q v[kWordBits];
      for (int j = 0; j < n; ++j) v[j] = q[j];
      return finish(v, at, c, n);
    }
    std::int32_t v[kWordBits];
    if (residual16_) {
      for (int j = 0; j < n; ++j) v[j] = std::int32_t(q[j]) + residual16_[at + j];
    } else {
      for (int j = 0; j < n; ++j) v[j] = std::int32_t(q[j]) + residual32_[at + j];
    }
    return finish(v, at, c, n);
  }

  std::uint64_t* const bits;
  const int channels;

 private:
  template <typename T>
  static __attribute__((noinline)) void prelu(T* v, const std::int16_t* slope, int n) {
    for (int j = 0; j < n; ++j) {
      const std::int32_t y = ((2 * std::int32_t(v[j]) + 1) * slope[j]) >> 15;
      v[j] = v[j] >= 0 ? v[j] : T(y < -32768 ? -32768 : y > 32767 ? 32767 : y);
    }
  }

  // T is as wide as the sums are.
  template <typename T>
  OVSW_INLINE std::uint64_t finish(T* v, std::int64_t at, int c, int n) const {
    clamp(v, n, T(lo_), T(hi_));
    if (slope_) {
      T w[kWordBits];  // a copy, so that v stays in registers where there is no slope
      for (int j = 0; j < n; ++j) w[j] = v[j];
      prelu(w, slope_ + c, n);
      for (int j = 0; j < n; ++j) v[j] = w[j];
    }
    if (out16_) {
      for (int j = 0; j < n; ++j) out16_[at + j] = std::int16_t(v[j]);
    }
    return bits ? signs(v, n) : 0;
  }

  const std::int16_t* residual16_;
  const std::int32_t* residual32_;
  std::int32_t lo_, hi_;
  const std::int16_t* slope_;
  std::int16_t* out16_;
  std::int32_t* out32_;
};

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

// The same as a call, for kernels whose core is the larger part: they share the code, 200 kB of a library for ARM.
template <typename E, typename Acc>
__attribute__((noinline)) void finish_pixel_call(const E& e, const Acc* acc, std::int64_t pixel, int first, int last) {
  finish_pixel(e, acc, pixel, first, last);
}

}  // namespace ovsw::OVSW_ISA::plain
