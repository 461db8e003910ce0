// Vectors of the width that the instruction set has. Every table adds in the same order: sums over lanes always use 16
// of them, in one register or in four.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/train/kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Selects lanes of two vectors by constant indices; gcc before 12 has another builtin for it.
#if defined(__clang__) || __GNUC__ >= 12
#define OVSW_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define OVSW_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype((a) > (b)){__VA_ARGS__})
#endif

namespace ovsw::train::OVSW_ISA {
namespace {

#if defined(__AVX512BW__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

template <typename E, int kCount>
struct VectorOf {
  typedef E type __attribute__((vector_size(sizeof(E) * kCount)));
};
template <typename E, int kCount = kBytes / int(sizeof(E))>
using Vector = typename VectorOf<E, kCount>::type;

// Aligned rows of lanes.
template <typename E>
Vector<E> load(const void* p) {
  return *static_cast<const Vector<E>*>(p);
}
template <typename E>
void store(void* p, Vector<E> v) {
  *static_cast<Vector<E>*>(p) = v;
}

// kCount numbers at any address.
template <int kCount, typename E>
Vector<E, kCount> get(const E* p) {
  Vector<E, kCount> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename V, typename E>
void put(E* p, V v) {
  static_assert(std::is_same_v<std::decay_t<decltype(v[0])>, E>);
  std::memcpy(p, &v, sizeof v);
}

template <int kCount>
Vector<float, kCount> to_float(Vector<float, kCount> v) {
  return v;
}
template <int kCount>
Vector<float, kCount> to_float(Vector<std::int16_t, kCount> v) {
  return __builtin_convertvector(__builtin_convertvector(v, Vector<std::int32_t, kCount>), Vector<float, kCount>);
}

template <typename V>
V all_of(float value) {
  return V{} + value;
}

template <typename V>
V absolute(V v) {
  Vector<std::uint32_t, sizeof(V) / 4> bits;
  std::memcpy(&bits, &v, sizeof v);
  bits &= 0x7FFFFFFFu;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

// fn(number of lanes as a constant, first) over [0, count): full vectors of floats, then shorter ones, then single
// numbers. For elementwise computations, where the division makes no difference.
template <typename Fn>
inline void in_spans(int count, Fn&& fn) {
  constexpr int kFull = kBytes / 4;
  int i = 0;
  for (; i + kFull <= count; i += kFull) fn(std::integral_constant<int, kFull>{}, i);
  if constexpr (kFull > 8) {
    if (i + 8 <= count) fn(std::integral_constant<int, 8>{}, i), i += 8;
  }
  if constexpr (kFull > 4) {
    if (i + 4 <= count) fn(std::integral_constant<int, 4>{}, i), i += 4;
  }
  for (; i < count; ++i) fn(std::integral_constant<int, 1>{}, i);
}

// 16 partial sums in float, over up to 256 numbers; their total is in double.
struct Sums16 {
  static constexpr int kParts = 64 / kBytes, kLanes = kBytes / 4;
  Vector<float> part[kParts] = {};

  double total() const {
    double sum = 0;
    for (const Vector<float>& p : part) {
      for (int i = 0; i < kLanes; ++i) sum += double(p[i]);
    }
    return sum;
  }
};

// kSums sums over i in [0, count). values(lanes, i, out) gives their terms as vectors.
template <int kSums, typename Values>
inline void add_up(std::size_t count, double (&totals)[kSums], Values&& values) {
  for (double& t : totals) t = 0;
  for (std::size_t start = 0; start < count; start += 256) {
    const std::size_t end = std::min(count, start + 256);
    Sums16 sums[kSums];
    std::size_t i = start;
    for (; i + 16 <= end; i += 16) {
      for (int p = 0; p < Sums16::kParts; ++p) {
        Vector<float> v[kSums];
        values(std::integral_constant<int, Sums16::kLanes>{}, i + std::size_t(p * Sums16::kLanes), v);
        for (int s = 0; s < kSums; ++s) sums[s].part[p] += v[s];
      }
    }
    for (; i < end; ++i) {
      Vector<float, 1> v[kSums];
      values(std::integral_constant<int, 1>{}, i, v);
      for (int s = 0; s < kSums; ++s) sums[s].part[0][0] += v[s][0];
    }
    for (int s = 0; s < kSums; ++s) totals[s] += sums[s].total();
  }
}

// Lanes shifted by one across two vectors: (last of a, b without its last), and (a without its first, first of b).
template <typename V, std::size_t... I>
V move_up(V a, V b, std::index_sequence<I...>) {
  return OVSW_SHUFFLE(a, b, int(sizeof...(I) - 1 + I)...);
}
template <typename V, std::size_t... I>
V move_down(V a, V b, std::index_sequence<I...>) {
  return OVSW_SHUFFLE(a, b, int(1 + I)...);
}

// Sums of products of neighbours: a[0] * b[0] + a[1] * b[1], ..
inline Vector<std::int32_t> products(Vector<std::int16_t> a, Vector<std::int16_t> b) {
#if defined(__AVX512BW__)
  return Vector<std::int32_t>(_mm512_madd_epi16(__m512i(a), __m512i(b)));
#elif defined(__AVX2__)
  return Vector<std::int32_t>(_mm256_madd_epi16(__m256i(a), __m256i(b)));
#elif defined(__SSE2__)
  return Vector<std::int32_t>(_mm_madd_epi16(__m128i(a), __m128i(b)));
#else
  Vector<std::int32_t> sums = {};
  for (int i = 0; i < kBytes / 4; ++i) sums[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
  return sums;
#endif
}

// A bit for each of up to 32 numbers: whether it is >= 0, and whether it is 0.
template <int kCount>
inline void sign_bits(Vector<float, kCount> v, std::uint32_t* not_negative, std::uint32_t* zero) {
#if defined(__AVX512F__)
  if constexpr (kCount == 16) {
    *not_negative = _mm512_cmp_ps_mask(__m512(v), _mm512_setzero_ps(), _CMP_GE_OQ);
    *zero = _mm512_cmp_ps_mask(__m512(v), _mm512_setzero_ps(), _CMP_EQ_OQ);
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (kCount == 8) {
    *not_negative = std::uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(__m256(v), _mm256_setzero_ps(), _CMP_GE_OQ)));
    *zero = std::uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(__m256(v), _mm256_setzero_ps(), _CMP_EQ_OQ)));
    return;
  }
#endif
#if defined(__SSE2__)
  if constexpr (kCount == 4) {
    *not_negative = std::uint32_t(_mm_movemask_ps(_mm_cmpge_ps(__m128(v), _mm_setzero_ps())));
    *zero = std::uint32_t(_mm_movemask_ps(_mm_cmpeq_ps(__m128(v), _mm_setzero_ps())));
    return;
  }
#endif
  *not_negative = *zero = 0;
  for (int i = 0; i < kCount; ++i) {
    *not_negative |= std::uint32_t(v[i] >= 0) << i;
    *zero |= std::uint32_t(v[i] == 0) << i;
  }
}

inline std::byte* take(std::byte*& scratch, std::size_t bytes) {
  std::byte* taken = scratch;
  scratch += (bytes + 63) / 64 * 64;
  return taken;
}

}  // namespace
}  // namespace ovsw::train::OVSW_ISA
