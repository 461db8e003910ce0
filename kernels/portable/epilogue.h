// The second half of every kernel: scale, offset, residual, activation, store, binarize, for one output pixel.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE {

// The first n of 64 bytes of 0/1 to bits, first byte lowest; those after n must be 0. Eight bytes at a time: byte i
// holds b_i at bit 8i; the multiplier is the sum of 2^(7k), k = 1..8, so the product has b_i at bit 8i + 7(8 - i) = 56
// + i, and no two terms meet there.
OVSW_INLINE std::uint64_t pack_flags(const std::uint8_t* flags, int n) {
  std::uint64_t word = 0;
  for (int i = 0; i < ceil_div(n, 8); ++i) {
    std::uint64_t bytes;
    std::memcpy(&bytes, flags + 8 * i, 8);
    word |= ((bytes * 0x0102040810204080ull) >> 56) << (8 * i);
  }
  return word;
}

// Channels [c0, c0 + n) of one pixel, n <= 64. `at` is the pixel's first element in out and residual.
template <typename Acc>
OVSW_INLINE void finish_word(const Epilogue& ep, const Acc* acc, std::int64_t at, int c0, int n, std::uint64_t* word) {
  float z[kWordBits];
  if (ep.scale) {
    const double* scale = ep.scale + c0;
    const double* offset = ep.offset + c0;
    if (ep.residual) {
      const float* residual = ep.residual + at + c0;
      for (int j = 0; j < n; ++j) z[j] = float(acc[c0 + j] * scale[j] + offset[j] + double(residual[j]));
    } else {
      for (int j = 0; j < n; ++j) z[j] = float(acc[c0 + j] * scale[j] + offset[j]);
    }
  } else if (ep.residual) {
    const float* residual = ep.residual + at + c0;
    for (int j = 0; j < n; ++j) z[j] = float(double(acc[c0 + j]) + double(residual[j]));
  } else {
    for (int j = 0; j < n; ++j) z[j] = float(acc[c0 + j]);
  }

  if (ep.act == Act::kClamp) {
    for (int j = 0; j < n; ++j) {
      z[j] = z[j] < ep.lo ? ep.lo : z[j];
      z[j] = z[j] > ep.hi ? ep.hi : z[j];
    }
  } else if (ep.act == Act::kPrelu) {
    const float* slope = ep.slope + c0;
    for (int j = 0; j < n; ++j) z[j] = z[j] >= 0.0f ? z[j] : z[j] * slope[j];
  }

  if (ep.out) std::memcpy(ep.out + at + c0, z, std::size_t(n) * sizeof(float));
  if (word) {
    alignas(8) std::uint8_t flags[kWordBits] = {};
    for (int j = 0; j < n; ++j) flags[j] = z[j] >= 0.0f;
    *word = pack_flags(flags, n);
  }
}

// All channels of output pixel `pixel`; acc has one value per channel, of type int32, float or double.
template <typename Acc>
OVSW_INLINE void finish_pixel(const Epilogue& ep, const Acc* acc, std::int64_t pixel, int channels) {
  const int words = ceil_div(channels, kWordBits);
  std::uint64_t* bits = ep.bits ? ep.bits + pixel * words : nullptr;
  for (int w = 0; w < words; ++w) {
    const int c0 = w * kWordBits;
    const int n = channels - c0;
    std::uint64_t* word = bits ? bits + w : nullptr;
    if (n >= kWordBits) {
      finish_word(ep, acc, pixel * channels, c0, kWordBits, word);  // constant trip counts: vectorised without tails
    } else {
      finish_word(ep, acc, pixel * channels, c0, n, word);
    }
  }
}

}  // namespace ovsw::OVSW_PORTABLE
