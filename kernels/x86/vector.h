// The widest register of a table, under names that do not depend on its width. The kernels that the x86 tables share
// are written with these and compiled once per table, like kernels/portable.
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

#include "kernels/portable/config.h"

#if defined(__AVX512F__)
#define OVSW_MM(name) _mm512_##name
#define OVSW_SI(name) _mm512_##name##_si512
#else
#define OVSW_MM(name) _mm256_##name
#define OVSW_SI(name) _mm256_##name##_si256
#endif

namespace ovsw::OVSW_ISA::x86 {

#if defined(__AVX512F__)
using Vec = __m512i;
#else
using Vec = __m256i;
#endif

constexpr int kLanes = sizeof(Vec) / sizeof(std::int32_t);  // 32-bit numbers of a register

OVSW_INLINE Vec load(const void* p) { return OVSW_SI(loadu)(static_cast<const Vec*>(p)); }
OVSW_INLINE void store(void* p, Vec v) { OVSW_SI(storeu)(static_cast<Vec*>(p), v); }
OVSW_INLINE Vec zero() { return OVSW_SI(setzero)(); }
OVSW_INLINE Vec all64(std::int64_t x) {
#if defined(__AVX512F__)
  return _mm512_set1_epi64(x);
#else
  return _mm256_set1_epi64x(x);
#endif
}
OVSW_INLINE Vec all32(std::int32_t x) { return OVSW_MM(set1_epi32)(x); }
OVSW_INLINE Vec all16(std::int32_t x) { return OVSW_MM(set1_epi16)(std::int16_t(x)); }
OVSW_INLINE Vec all_groups(const void* p) {  // of four bytes, or two 16-bit numbers
  std::int32_t group;
  std::memcpy(&group, p, sizeof group);
  return all32(group);
}
OVSW_INLINE Vec add32(Vec a, Vec b) { return OVSW_MM(add_epi32)(a, b); }
OVSW_INLINE Vec multiply_pairs(Vec a, Vec b) { return OVSW_MM(madd_epi16)(a, b); }  // of 16 bits, and add both products
OVSW_INLINE Vec clamp16(Vec v, Vec lo, Vec hi) { return OVSW_MM(min_epi16)(OVSW_MM(max_epi16)(v, lo), hi); }

#if defined(__AVX512F__)

// The lowest n of 64 bits; none for n < 0.
OVSW_INLINE std::uint64_t low_bits(std::int64_t n) {
  return n >= 64 ? ~std::uint64_t(0) : n > 0 ? (std::uint64_t(1) << n) - 1 : 0;
}

// The lowest 2 or 4 bytes of each 64-bit number.
template <int Bytes>
OVSW_INLINE void narrow_words(Vec v, void* to) {
  if constexpr (Bytes == 4) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi64_epi32(v));
  } else {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi64_epi16(v));
  }
}

using Some = __mmask16;  // which of kLanes numbers exist

OVSW_INLINE void store32(std::int32_t* p, Some some, Vec v) { _mm512_mask_storeu_epi32(p, some, v); }
OVSW_INLINE Vec load32(const std::int32_t* p, Some some) { return _mm512_maskz_loadu_epi32(some, p); }
OVSW_INLINE Vec widen32(const std::int16_t* p, Some some) {
  return _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(some, p));
}
OVSW_INLINE Vec widen16(const std::uint8_t* p) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// Packing works within 128-bit lanes.
OVSW_INLINE Vec pack16(Vec a, Vec b) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packs_epi32(a, b));
}
// Of 16-bit numbers: a where v is negative, else b.
OVSW_INLINE Vec by_sign(Vec v, Vec a, Vec b) { return _mm512_mask_blend_epi16(_mm512_movepi16_mask(v), b, a); }
OVSW_INLINE Vec by_sign32(Vec v, Vec a, Vec b) { return _mm512_mask_blend_epi32(_mm512_movepi32_mask(v), b, a); }
// The even 32-bit numbers of a and the odd ones of b.
OVSW_INLINE Vec join_odd32(Vec a, Vec b) { return _mm512_mask_blend_epi32(0xaaaa, a, b); }
// In place: with intrinsics gcc 12 copies and stores sums in every round.
OVSW_INLINE void add_products(Vec& sum, Vec a, Vec b) {
  __asm__ volatile("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}
// Of unsigned and signed bytes, four to a sum.
OVSW_INLINE void add_byte_products(Vec& sum, Vec a, Vec b) {
  __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

#else

// The lowest 2 or 4 bytes of each 64-bit number.
template <int Bytes>
OVSW_INLINE void narrow_words(Vec v, void* to) {
  if constexpr (Bytes == 4) {
    const Vec joined = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_castsi256_si128(joined));
  } else {
    const Vec joined = _mm256_shuffle_epi8(v, _mm256_set1_epi32(0x09080100));
    const __m128i low = _mm256_castsi256_si128(joined), high = _mm256_extracti128_si256(joined, 1);
    _mm_storel_epi64(static_cast<__m128i*>(to), _mm_unpacklo_epi32(low, high));
  }
}

// Stores n of the elements of `size` bytes in v.
OVSW_INLINE void store_some(void* to, Vec v, int n, int size) {
  alignas(Vec) unsigned char tail[sizeof(Vec)];
  store(tail, v);
  std::memcpy(to, tail, std::size_t(n) * std::size_t(size));
}

using Some = int;  // how many numbers exist from here on; loads need not know

OVSW_INLINE void store32(std::int32_t* p, Some some, Vec v) {
  if (some >= kLanes) {
    store(p, v);
  } else if (some > 0) {
    store_some(p, v, some, sizeof *p);
  }
}
OVSW_INLINE Vec load32(const std::int32_t* p, Some) { return load(p); }
OVSW_INLINE Vec widen32(const std::int16_t* p, Some) {
  return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
OVSW_INLINE Vec widen16(const std::uint8_t* p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// Packing works within 128-bit lanes: 0-3 8-11 | 4-7 12-15.
OVSW_INLINE Vec pack16(Vec a, Vec b) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), _MM_SHUFFLE(3, 1, 2, 0));
}
// Of 16-bit numbers: a where v is negative, else b.
OVSW_INLINE Vec by_sign(Vec v, Vec a, Vec b) { return _mm256_blendv_epi8(b, a, _mm256_srai_epi16(v, 15)); }
OVSW_INLINE Vec by_sign32(Vec v, Vec a, Vec b) { return _mm256_blendv_epi8(b, a, _mm256_srai_epi32(v, 31)); }
// The even 32-bit numbers of a and the odd ones of b.
OVSW_INLINE Vec join_odd32(Vec a, Vec b) { return _mm256_blend_epi32(a, b, 0xaa); }
// In place: with intrinsics gcc copies every sum in every round, and spills some.
OVSW_INLINE void add_products(Vec& sum, Vec a, Vec b) {
  __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(a, b)));
}

#endif

// A register of Values from numbers that may be narrower.
template <typename Value, typename In>
OVSW_INLINE Vec converted(const In* p) {
  if constexpr (sizeof(In) == sizeof(Value)) return load(p);
  if constexpr (sizeof(In) < sizeof(Value)) return widen16(p);
}

template <int Bytes>
OVSW_INLINE void copy(void* to, const void* from) {
  if constexpr (Bytes == sizeof(Vec)) return store(to, load(from));
  if constexpr (Bytes != sizeof(Vec)) {
    const __m256i v = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    _mm256_storeu_si256(static_cast<__m256i*>(to), v);
  }
}

// N structs that stay in registers: gcc 12 leaves arrays in memory.
template <typename T, int N>
struct List {
  T first;
  List<T, N - 1> rest;

  // fn(element, its index, or a pointer that goes on by `step`)
  template <typename Fn, typename At = int>
  OVSW_INLINE void each(Fn fn, At at = 0, std::int64_t step = 1) {
    fn(first, at);
    rest.each(fn, At(at + step), step);
  }
  // fn(element, the other list's)
  template <typename U, typename Fn>
  OVSW_INLINE void each_with(const List<U, N>& other, Fn fn) {
    fn(first, other.first);
    rest.each_with(other.rest, fn);
  }
};
template <typename T>
struct List<T, 0> {
  template <typename Fn, typename At>
  OVSW_INLINE void each(Fn, At, std::int64_t) {}
  template <typename U, typename Fn>
  OVSW_INLINE void each_with(const List<U, 0>&, Fn) {}
};

}  // namespace ovsw::OVSW_ISA::x86
