// What the hand-written AVX-512 kernels share: the second half of an op (shift, residual, clamp, store, binarize) for
// 16 or 32 channels of one output pixel, and small helpers. q + residual is formed in 32 bits; only then is it packed,
// saturating, to 16 bits, which loses nothing as lo and hi are 16-bit numbers.
#pragma once

// gcc 12's header warns of its own _mm512_undefined_epi32 (gcc PR 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstring>

#include "kernels/portable/config.h"

#define OVSW_AVX512_MEMBER inline __attribute__((always_inline))
#define OVSW_AVX512_INLINE static OVSW_AVX512_MEMBER

namespace ovsw::x86_avx512 {

static constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

OVSW_AVX512_INLINE __m512i load(const void* p) { return _mm512_loadu_si512(p); }
OVSW_AVX512_INLINE void store(void* p, __m512i v) { _mm512_storeu_si512(p, v); }

// The lowest n of 64 bits; none for n < 0.
OVSW_AVX512_INLINE std::uint64_t low_bits(std::int64_t n) {
  return n >= 64 ? ~std::uint64_t(0) : n > 0 ? (std::uint64_t(1) << n) - 1 : 0;
}

// What is added to q; kSum means that q itself, in 32 bits, is all that is wanted.
enum class Add { kSum, kNothing, kInt16, kInt32 };

OVSW_AVX512_INLINE Add add_of(const IntArgs& a) {
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
  __m512i lo, hi;
};

OVSW_AVX512_INLINE Target make_target(const IntArgs& a) {
  return {a.residual,
          a.residual32,
          a.out,
          a.out32,
          a.out32 ? nullptr : reinterpret_cast<unsigned char*>(a.bits),
          a.shape.out_c,
          ceil_div(a.shape.out_c, 64) * 8,
          _mm512_set1_epi16(std::int16_t(a.lo)),
          _mm512_set1_epi16(std::int16_t(a.hi))};
}

// 16 channels, of which those in `mask` exist, at element `at` of the maps: q + residual from sums (base included). For
// kSum, q is written here.
template <Add A>
OVSW_AVX512_INLINE __m512i shift_add(const Target& t, std::int64_t at, __mmask16 mask, const std::int32_t* shift,
                                     __m512i sum) {
  const __m512i q = _mm512_srav_epi32(sum, load(shift));
  if constexpr (A == Add::kSum) {
    _mm512_mask_storeu_epi32(t.out32 + at, mask, q);
    return q;
  } else if constexpr (A == Add::kInt16) {
    return _mm512_add_epi32(q, _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(mask, t.residual + at)));
  } else if constexpr (A == Add::kInt32) {
    return _mm512_add_epi32(q, _mm512_maskz_loadu_epi32(mask, t.residual32 + at));
  } else {
    return q;
  }
}

// 32 channels, of which those in `mask` exist, from q + residual of the halves: clamped and stored, as numbers at
// element `at` and as signs at `bits`, 4 bytes or, with zeros, a whole word. One slab is stored by 32 bytes: the masked
// half of a longer store would still hold up the load of the next pixel's residual.
OVSW_AVX512_INLINE void put32(const Target& t, std::int64_t at, __mmask32 mask, unsigned char* bits, bool word,
                              int slabs, __m512i q0, __m512i q1) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);  // packing works within 128-bit lanes
  __m512i v = _mm512_permutexvar_epi64(order, _mm512_packs_epi32(q0, q1));
  v = _mm512_min_epi16(_mm512_max_epi16(v, t.lo), t.hi);
  if (t.out) {
    if (slabs > 1) {
      _mm512_mask_storeu_epi16(t.out + at, mask, v);
    } else {
      _mm256_mask_storeu_epi16(t.out + at, __mmask16(mask), _mm512_castsi512_si256(v));
    }
  }
  if (bits) {
    const std::uint64_t signs = std::uint32_t(_mm512_mask_cmpge_epi16_mask(mask, v, _mm512_setzero_si512()));
    std::memcpy(bits, &signs, word ? 8 : 4);
  }
}

// The sums, base not included, of `pixels` pixels x `slabs` (1 or 2 of 16 channels) from channel c, a multiple of 32;
// they lie `step` registers per pixel apart. `scale` changes a sum before its base is added.
template <Add A, typename Scale>
OVSW_AVX512_INLINE void finish(const Target& target, const std::int32_t* shift, const std::int32_t* const* base,
                               std::int64_t pixel, int pixels, int c, int slabs, const __m512i* sums, int step,
                               Scale scale) {
  const Target t = target;
  const int n = t.channels - c;
  const auto mask = __mmask32(low_bits(n));
  const auto mask0 = __mmask16(mask), mask1 = __mmask16(mask >> 16);
  const bool word = n <= 32 && c % 64 == 0;
  std::int64_t at = pixel * t.channels + c;
  unsigned char* bits = t.bits ? t.bits + pixel * t.bits_step + c / 8 : nullptr;
  for (int i = 0; i < pixels; ++i, at += t.channels, sums += step) {
    const std::int32_t* b = base[i] + c;
    const __m512i q0 = shift_add<A>(t, at, mask0, shift + c, _mm512_add_epi32(scale(sums[0], 0), load(b)));
    __m512i q1 = q0;
    if (slabs > 1) {
      q1 = shift_add<A>(t, at + 16, mask1, shift + c + 16, _mm512_add_epi32(scale(sums[1], 1), load(b + 16)));
    }
    if constexpr (A != Add::kSum) {
      put32(t, at, mask, bits, word, slabs, q0, q1);
      if (bits) bits += t.bits_step;
    }
  }
}

}  // namespace ovsw::x86_avx512
