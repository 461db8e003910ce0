// The second half of the integer kernels: residual, clamp, store, binarize, for one output pixel.
#pragma once

#include "kernels/portable/config.h"
#include "kernels/portable/epilogue.h"

namespace ovsw::OVSW_PORTABLE {

// Clamps and stores `n` sums, and returns their signs; T is as wide as they are.
template <typename T>
OVSW_INLINE std::uint64_t int_store(const IntArgs& a, T* v, std::int64_t at, int n) {
  const T lo = T(a.lo), hi = T(a.hi);
  for (int j = 0; j < n; ++j) {
    v[j] = v[j] < lo ? lo : v[j];
    v[j] = v[j] > hi ? hi : v[j];
  }
  if (a.out) {
    for (int j = 0; j < n; ++j) a.out[at + j] = std::int16_t(v[j]);
  }
  if (!a.bits) return 0;
  alignas(8) std::uint8_t flags[kWordBits] = {};
  for (int j = 0; j < n; ++j) flags[j] = v[j] >= 0;
  return pack_flags(flags, n);
}

// Channels of one pixel from element `at` of the map on, n <= 64. A constant where it matters.
template <typename Q>
OVSW_INLINE std::uint64_t int_finish(const IntArgs& a, const Q* q, std::int64_t at, int n) {
  if (!a.residual && !a.residual32) {
    Q v[kWordBits];
    for (int j = 0; j < n; ++j) v[j] = q[j];
    return int_store(a, v, at, n);
  }
  std::int32_t v[kWordBits];
  if (a.residual) {
    const std::int16_t* r = a.residual + at;
    for (int j = 0; j < n; ++j) v[j] = std::int32_t(q[j]) + r[j];
  } else {
    const std::int32_t* r = a.residual32 + at;
    for (int j = 0; j < n; ++j) v[j] = std::int32_t(q[j]) + r[j];
  }
  return int_store(a, v, at, n);
}

// Channels [first, last) of output pixel `pixel`, as in IntArgs; q is int16 or int32, of all channels.
template <typename Q>
OVSW_INLINE void int_finish_pixel(const IntArgs& a, const Q* q, std::int64_t pixel, int first, int last) {
  constexpr int kBlock = 16;
  const std::int64_t at = pixel * a.shape.out_c;
  std::uint64_t* bits = a.bits ? a.bits + pixel * ceil_div(a.shape.out_c, kWordBits) : nullptr;
  for (int c0 = first; c0 < last; c0 += kWordBits) {
    std::uint64_t word = 0;
    if (last - c0 >= kWordBits) {
      word = int_finish(a, q + c0, at + c0, kWordBits);
    } else {
      int c = c0;
      for (; c + kBlock <= last; c += kBlock) word |= int_finish(a, q + c, at + c, kBlock) << (c - c0);
      if (c < last) word |= int_finish(a, q + c, at + c, last - c) << (c - c0);
    }
    if (bits) bits[c0 / kWordBits] = word;
  }
}

}  // namespace ovsw::OVSW_PORTABLE
