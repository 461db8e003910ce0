// What the hand-written AVX2 kernels share: the second half of an op (shift, residual, clamp, store, binarize) for 16
// channels of one output pixel, and small helpers.
//
// q + residual is formed in 32 bits: q alone may leave 16 bits where the sum does not, as with a stream that is clamped
// to all of 16 bits, so saturating q before the sum would be wrong. Saturating after it loses nothing, as lo and hi are
// 16-bit numbers.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/portable/config.h"

#define OVSW_AVX2_MEMBER inline __attribute__((always_inline))
#define OVSW_AVX2_INLINE static OVSW_AVX2_MEMBER

namespace ovsw::x86_avx2 {

static constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

OVSW_AVX2_INLINE __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
OVSW_AVX2_INLINE void store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// What is added to q; kSum means that q itself, in 32 bits, is all that is wanted.
enum class Add { kSum, kNothing, kInt16, kInt32 };

OVSW_AVX2_INLINE Add add_of(const IntArgs& a) {
  return a.out32 ? Add::kSum : a.residual ? Add::kInt16 : a.residual32 ? Add::kInt32 : Add::kNothing;
}

// Where channels go. A copy of the arguments, as every vector store might change those for all the compiler knows.
struct Target {
  const std::int16_t* residual;
  const std::int32_t* residual32;
  std::int16_t* out;
  std::int32_t* out32;
  unsigned char* bits;
  int channels;
  std::int64_t bits_step;  // bytes per pixel
  __m256i lo, hi;
};

OVSW_AVX2_INLINE Target make_target(const IntArgs& a) {
  return {a.residual,
          a.residual32,
          a.out,
          a.out32,
          a.out32 ? nullptr : reinterpret_cast<unsigned char*>(a.bits),
          a.shape.out_c,
          ceil_div(a.shape.out_c, 64) * 8,
          _mm256_set1_epi16(std::int16_t(a.lo)),
          _mm256_set1_epi16(std::int16_t(a.hi))};
}

// Stores n of the 16 elements of `size` bytes in v.
OVSW_AVX2_INLINE void store_some(void* to, const __m256i* v, int n, int size) {
  alignas(32) unsigned char tail[64];
  store(tail, v[0]);
  if (size == 4) store(tail + 32, v[1]);
  std::memcpy(to, tail, std::size_t(n) * std::size_t(size));
}

// 16 channels, of which n > 0 exist, at element `at` of the maps, from sums (base included) of channels 0-7 and 8-15.
// Writes and returns the clamped values.
template <Add A>
OVSW_AVX2_INLINE __m256i finish16(const Target& t, std::int64_t at, int n, const std::int32_t* shift, __m256i sum0,
                                  __m256i sum1) {
  __m256i q[2] = {_mm256_srav_epi32(sum0, load(shift)), _mm256_srav_epi32(sum1, load(shift + 8))};
  if constexpr (A == Add::kSum) {
    if (n >= 16) {
      store(t.out32 + at, q[0]);
      store(t.out32 + at + 8, q[1]);
    } else {
      store_some(t.out32 + at, q, n, 4);
    }
    return q[0];
  } else if constexpr (A == Add::kInt16) {
    const auto* r = reinterpret_cast<const __m128i*>(t.residual + at);
    q[0] = _mm256_add_epi32(q[0], _mm256_cvtepi16_epi32(_mm_loadu_si128(r)));
    q[1] = _mm256_add_epi32(q[1], _mm256_cvtepi16_epi32(_mm_loadu_si128(r + 1)));
  } else if constexpr (A == Add::kInt32) {
    q[0] = _mm256_add_epi32(q[0], load(t.residual32 + at));
    q[1] = _mm256_add_epi32(q[1], load(t.residual32 + at + 8));
  }
  // Packing works within 128-bit lanes: 0-3 8-11 | 4-7 12-15.
  __m256i v = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[0], q[1]), _MM_SHUFFLE(3, 1, 2, 0));
  v = _mm256_min_epi16(_mm256_max_epi16(v, t.lo), t.hi);
  if (t.out) {
    if (n >= 16) {
      store(t.out + at, v);
    } else {
      store_some(t.out + at, &v, n, 2);
    }
  }
  return v;
}

// The signs of channels c to c + 31, c a multiple of 32, of which n exist, to byte c / 8 of a pixel's bits; v1 counts
// only if n > 16. The end of the last word is zero.
OVSW_AVX2_INLINE void put_bits32(unsigned char* to, int c, int n, __m256i v0, __m256i v1) {
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(v0, v1), _MM_SHUFFLE(3, 1, 2, 0));
  const std::uint32_t mask = ~std::uint32_t(_mm256_movemask_epi8(bytes));
  if (n >= 32 && (n > 32 || c % 64 != 0)) {
    std::memcpy(to + c / 8, &mask, sizeof mask);
  } else {
    const std::uint64_t word = n < 32 ? mask & ((1u << n) - 1) : mask;
    std::memcpy(to + c / 8, &word, sizeof word - std::size_t(c % 64) / 8);
  }
}

// The same for channels c to c + 15, c a multiple of 16.
OVSW_AVX2_INLINE void put_bits16(unsigned char* to, int c, int n, __m256i v) {
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const std::uint32_t mask = ~std::uint32_t(_mm_movemask_epi8(bytes));
  if (n > 16) {
    std::memcpy(to + c / 8, &mask, sizeof(std::uint16_t));
  } else {
    const std::uint64_t word = mask & ((1u << n) - 1);
    std::memcpy(to + c / 8, &word, sizeof word - std::size_t(c % 64) / 8);
  }
}

}  // namespace ovsw::x86_avx2
