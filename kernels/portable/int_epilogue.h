// The second half of the integer kernels: residual, clamp, store, binarize, for one output pixel.
#pragma once

#include "kernels/portable/config.h"
#include "kernels/portable/epilogue.h"

namespace ovsw::OVSW_PORTABLE {

// Clamps, stores and binarizes `n` sums; T is as wide as they are.
template <typename T>
OVSW_INLINE void int_store_word(const IntArgs& a, T* v, std::int64_t at, int n, std::uint64_t* word) {
  const T lo = T(a.lo), hi = T(a.hi);
  for (int j = 0; j < n; ++j) {
    v[j] = v[j] < lo ? lo : v[j];
    v[j] = v[j] > hi ? hi : v[j];
  }
  if (a.out) {
    for (int j = 0; j < n; ++j) a.out[at + j] = std::int16_t(v[j]);
  }
  if (word) {
    alignas(8) std::uint8_t flags[kWordBits] = {};
    for (int j = 0; j < n; ++j) flags[j] = v[j] >= 0;
    *word = pack_flags(flags);
  }
}

// Channels of one pixel from element `at` of the map on, n <= 64.
template <typename Q>
OVSW_INLINE void int_finish_word(const IntArgs& a, const Q* q, std::int64_t at, int n, std::uint64_t* word) {
  if (!a.residual && !a.residual32) {
    Q v[kWordBits];
    for (int j = 0; j < n; ++j) v[j] = q[j];
    int_store_word(a, v, at, n, word);
    return;
  }
  std::int32_t v[kWordBits];
  if (a.residual) {
    const std::int16_t* r = a.residual + at;
    for (int j = 0; j < n; ++j) v[j] = std::int32_t(q[j]) + r[j];
  } else {
    const std::int32_t* r = a.residual32 + at;
    for (int j = 0; j < n; ++j) v[j] = std::int32_t(q[j]) + r[j];
  }
  int_store_word(a, v, at, n, word);
}

// Channels [first, last) of output pixel `pixel`, as in IntArgs; q is int16 or int32, of all channels.
template <typename Q>
OVSW_INLINE void int_finish_pixel(const IntArgs& a, const Q* q, std::int64_t pixel, int first, int last) {
  const int channels = a.shape.out_c;
  std::uint64_t* bits = a.bits ? a.bits + pixel * ceil_div(channels, kWordBits) : nullptr;
  for (int c0 = first; c0 < last; c0 += kWordBits) {
    const int n = last - c0;
    std::uint64_t* word = bits ? bits + c0 / kWordBits : nullptr;
    if (n >= kWordBits) {
      int_finish_word(a, q + c0, pixel * channels + c0, kWordBits, word);
    } else {
      int_finish_word(a, q + c0, pixel * channels + c0, n, word);
    }
  }
}

}  // namespace ovsw::OVSW_PORTABLE
