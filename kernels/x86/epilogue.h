// The second half of an op for a few channels of one output pixel, in steps: shift, residual, clamp or step, slopes,
// store, binarize. Which of them are needed is decided once per call; kernels only pass the choice on as the type E.
// Step, slopes and thresholds, which many networks do not have, are one choice, E::kMore, and are told apart at run
// time: as types of their own they would multiply the copies of every kernel.
//
// q + residual is computed in 32 bits: q alone may overflow 16 bits although the sum does not, so saturating q before
// the sum would be wrong. Saturating after it loses nothing, as lo and hi are 16-bit numbers.
//
// Wide ops, E::kWide, are of two kinds. Most continue the residual stream: they add an i32, have no activation or
// slopes, and store the result. These are types, too. The steps of all other wide ops are told apart at run time.
//
// After the common part: AVX-512 has masks and works on 32 channels, with the masks ready for all pixels of a tile;
// AVX2 works on 16, and only the last channels of a map take another path.
#pragma once

#include <type_traits>

#include "kernels/x86/vector.h"

namespace ovsw::OVSW_ISA::x86 {

// What is added to q. Two values are for wide ops: kStream adds an i32 and stores the result, kAny may add anything.
enum class Add { kAny, kStream, kNothing, kInt16, kInt32 };
constexpr bool is_wide(Add add) { return add == Add::kAny || add == Add::kStream; }

// The scales of a bconv.
template <bool Wide>
struct Factors {
  using Factor = std::int16_t;
};
template <>
struct Factors<true> {
  using Factor = std::int32_t;
};

template <Add A, bool More = false>
struct Parts : Factors<is_wide(A)> {
  static constexpr Add kAdd = A;
  static constexpr bool kWide = is_wide(A);
  // More than a clamp and bits = (v >= 0), or a window term before. With kStream: slopes, and perhaps a window term.
  static constexpr bool kMore = More;
};

// fn(the Parts that these arguments ask for)
template <typename Fn>
OVSW_INLINE void with_parts(const KernelArgs& a, Fn fn) {
  const bool more = a.act == Act::kPrelu || a.act == Act::kStep || a.constants[kThreshold] != nullptr ||
                    a.constants[kWindow] != nullptr;
  const auto with_more = [&](auto add) OVSW_INLINE_LAMBDA {
    if (more) return fn(Parts<decltype(add)::kAdd, true>());
    fn(add);
  };
  if (a.wide) {
    const bool stream = a.residual.data && a.residual.kind == Element::kI32 && a.out.data;
    if (stream && a.act == Act::kPrelu) return fn(Parts<Add::kStream, true>());
    if (stream && a.act == Act::kNone && !a.constants[kWindow]) return fn(Parts<Add::kStream>());
    return fn(Parts<Add::kAny, true>());
  }
  if (!a.residual.data) return with_more(Parts<Add::kNothing>());
  if (a.residual.kind == Element::kI32) return with_more(Parts<Add::kInt32>());
  with_more(Parts<Add::kInt16>());
}

// Where channels go. A copy of the arguments: for all the compiler knows, every vector store might change the original.
struct Target {
  const std::int16_t* residual;
  const std::int32_t* residual32;
  std::int16_t* out;
  std::int32_t* out32;
  unsigned char* bits;
  int channels;
  std::int64_t bits_step;  // bytes per pixel
  Vec lo, hi;
  Act act;
  const void *slope, *positive, *threshold;  // of 16 bits, or if wide of 32
};
struct WideTarget : Target {
  const std::int32_t *scale, *window;  // of bconv
  bool only_stores;                    // q is all that is wanted
};

template <typename E>
using TargetOf = std::conditional_t<E::kWide, WideTarget, Target>;

template <typename E>
OVSW_INLINE TargetOf<E> make_target(const KernelArgs& a) {
  const auto lo = std::int32_t(a.lo), hi = std::int32_t(a.hi);
  const Target target = {a.residual.as<const std::int16_t>(Element::kI16),
                         a.residual.as<const std::int32_t>(Element::kI32),
                         a.out.as<std::int16_t>(Element::kI16),
                         a.out.as<std::int32_t>(Element::kI32),
                         reinterpret_cast<unsigned char*>(a.bits),
                         a.shape.out_c,
                         ceil_div(a.shape.out_c, 64) * 8,
                         E::kWide ? all32(lo) : all16(lo),
                         E::kWide ? all32(hi) : all16(hi),
                         a.act,
                         a.constants[kSlope],
                         a.constants[kPositive],
                         a.constants[kThreshold]};
  if constexpr (E::kWide) {
    const bool only_stores = a.out.data && !a.bits && !a.residual.data && a.act == Act::kNone;
    return WideTarget{target, a.constant<std::int32_t>(kScale), a.constant<std::int32_t>(kWindow), only_stores};
  } else {
    return target;
  }
}

// Constants for a register of channels, of ops with E::kMore and of wide ops.
struct More {
  Vec slope, positive, threshold;
};

// Those of 2 * kLanes channels from c on.
template <typename E>
OVSW_INLINE More more_at(const Target& t, int c) {
  if constexpr (!E::kMore || E::kWide) return {zero(), zero(), zero()};
  const auto at = [c](const void* row) OVSW_INLINE_LAMBDA { return load(static_cast<const std::int16_t*>(row) + c); };
  return {t.slope ? at(t.slope) : zero(), t.positive ? at(t.positive) : all16(1 << 14),
          t.threshold ? at(t.threshold) : zero()};
}

// Those of kLanes channels from c on of a wide op.
OVSW_INLINE More wide_more_at(const Target& t, int c) {
  const auto at = [c](const void* row) OVSW_INLINE_LAMBDA { return load(static_cast<const std::int32_t*>(row) + c); };
  return {t.slope ? at(t.slope) : zero(), t.positive ? at(t.positive) : all32(1 << 30),
          t.threshold ? at(t.threshold) : zero()};
}

// kLanes channels, of which `some` exist, at element `at` of the maps: q + residual from sums (base included).
template <typename E>
OVSW_INLINE Vec shift_add(const Target& t, std::int64_t at, Some some, const std::int32_t* shift, Vec sum) {
  const Vec q = OVSW_MM(srav_epi32)(sum, load(shift));
  if constexpr (E::kAdd == Add::kInt16) {
    return add32(q, widen32(t.residual + at, some));
  } else if constexpr (E::kAdd == Add::kInt32) {
    return add32(q, load32(t.residual32 + at, some));
  } else {
    return q;
  }
}

// ((2 * v + 1) * slope) >> 15, which is (v * slope + (slope >> 1)) >> 14: one multiplication of pairs.
OVSW_INLINE Vec scale16(Vec v, Vec slope) {
  const Vec one = all16(1), half = OVSW_MM(srai_epi16)(slope, 1);
  const Vec low = multiply_pairs(OVSW_MM(unpacklo_epi16)(v, one), OVSW_MM(unpacklo_epi16)(slope, half));
  const Vec high = multiply_pairs(OVSW_MM(unpackhi_epi16)(v, one), OVSW_MM(unpackhi_epi16)(slope, half));
  return OVSW_MM(packs_epi32)(OVSW_MM(srai_epi32)(low, 14), OVSW_MM(srai_epi32)(high, 14));
}

// The values of 2 * kLanes channels from q + residual of the halves.
template <typename E>
OVSW_INLINE Vec values(const Target& t, const More& more, Vec q0, Vec q1) {
  const Vec sum = pack16(q0, q1), v = clamp16(sum, t.lo, t.hi);
  if constexpr (E::kMore) {
    if (t.act == Act::kPrelu) return scale16(v, by_sign(v, more.slope, more.positive));
    if (t.act == Act::kStep) return by_sign(sum, t.lo, t.hi);
  }
  return v;
}

// (v * slope + 2^29) >> 30 in 64 bits. Of odd numbers, the upper half is wanted in its place.
OVSW_INLINE Vec scale32(Vec v, Vec slope) {
  const Vec half = all64(1 << 29);
  const Vec even = OVSW_MM(add_epi64)(OVSW_MM(mul_epi32)(v, slope), half);
  const Vec upper = OVSW_MM(mul_epi32)(OVSW_MM(srli_epi64)(v, 32), OVSW_MM(srli_epi64)(slope, 32));
  const Vec odd = OVSW_MM(add_epi64)(upper, half);
  return join_odd32(OVSW_MM(srli_epi64)(even, 30), OVSW_MM(slli_epi64)(odd, 2));
}

// The values of kLanes channels of a wide op, of which `some` exist, at element `at` of the maps: stored, and returned
// for their signs.
template <typename E>
OVSW_INLINE Vec wide_values(const WideTarget& t, const More& more, std::int64_t at, Some some,
                            const std::int32_t* shift, Vec sum) {
  constexpr bool kStream = E::kAdd == Add::kStream;
  Vec v = OVSW_MM(srav_epi32)(sum, load(shift));
  if (!kStream && t.only_stores) {
    store32(t.out32 + at, some, v);
    return v;
  }
  if (kStream || t.residual32) {
    v = add32(v, load32(t.residual32 + at, some));
  } else if (t.residual) {
    v = add32(v, widen32(t.residual + at, some));
  }
  if (kStream ? E::kMore : t.act == Act::kPrelu) {
    v = scale32(v, by_sign32(v, more.slope, more.positive));
  } else if (!kStream && t.act == Act::kClamp) {
    v = OVSW_MM(min_epi32)(OVSW_MM(max_epi32)(v, t.lo), t.hi);
  } else if (!kStream && t.act == Act::kStep) {
    v = by_sign32(v, t.lo, t.hi);
  }
  if (kStream || t.out32) store32(t.out32 + at, some, v);
  return v;
}

#if defined(__AVX512F__)

// Stores 4 bytes, or a whole word.
OVSW_INLINE void put_signs(unsigned char* bits, bool word, std::uint64_t signs) {
  if (word) {
    std::memcpy(bits, &signs, 8);
  } else {
    std::memcpy(bits, &signs, 4);
  }
}

// 32 channels, of which those in `mask` exist, from q + residual of the halves: clamped and stored, as
// numbers at element `at` and as bits at `bits`, 4 bytes or, with zeros, a whole word. One slab is stored by 32 bytes:
// the masked half of a longer store would still hold up the load of the next pixel's residual.
template <typename E>
OVSW_INLINE void put32(const Target& t, std::int64_t at, const More& more, __mmask32 mask, unsigned char* bits,
                       bool word, int slabs, Vec q0, Vec q1) {
  const Vec v = values<E>(t, more, q0, q1);
  if (t.out) {
    if (slabs > 1) {
      _mm512_mask_storeu_epi16(t.out + at, mask, v);
    } else {
      _mm256_mask_storeu_epi16(t.out + at, __mmask16(mask), _mm512_castsi512_si256(v));
    }
  }
  if (bits) {
    put_signs(bits, word, std::uint32_t(_mm512_mask_cmpge_epi16_mask(mask, v, more.threshold)));
  }
}

// The same of all channels of two pixels, if they have 16 each.
template <typename E>
OVSW_INLINE void put_two(const Target& t, std::int64_t at, const More& more, unsigned char* bits, Vec q0, Vec q1) {
  const Vec v = values<E>(t, more, q0, q1);
  if (t.out) store(t.out + at, v);
  if (bits) {
    const std::uint32_t signs = _mm512_cmpge_epi16_mask(v, more.threshold);
    std::uint64_t first = signs & 0xffff, second = signs >> 16;
    __asm__("" : "+r"(first), "+r"(second));  // or gcc joins them in a vector, to store it
    std::memcpy(bits, &first, 8);
    std::memcpy(bits + 8, &second, 8);
  }
}

// The sums, base not included, of `pixels` pixels x `slabs` (1 or 2 of 16 channels) from channel c, a multiple of 32;
// they lie `step` registers per pixel apart. `scale` changes sum(slab, pixel) before its base is added.
template <typename E, typename Scale>
OVSW_INLINE void finish(const TargetOf<E>& target, const std::int32_t* shift, const std::int32_t* const* base,
                        std::int64_t pixel, int pixels, int c, int slabs, const Vec* sums, int step, Scale scale) {
  const TargetOf<E> t = target;
  const int n = t.channels - c;
  const auto mask = __mmask32(low_bits(n));
  const auto mask0 = __mmask16(mask), mask1 = __mmask16(mask >> 16);
  const bool word = n <= 32 && c % 64 == 0;
  const More more = more_at<E>(t, c);
  std::int64_t at = pixel * t.channels + c;
  unsigned char* bits = t.bits ? t.bits + pixel * t.bits_step + c / 8 : nullptr;
  int i = 0;
  if constexpr (E::kWide) {
    const More more0 = wide_more_at(t, c), more1 = slabs > 1 ? wide_more_at(t, c + 16) : more0;
    for (; i < pixels; ++i, at += t.channels, sums += step) {
      const std::int32_t* b = base[i] + c;
      const Vec v0 = wide_values<E>(t, more0, at, mask0, shift + c, add32(scale(sums[0], 0, i), load(b)));
      std::uint32_t signs = _mm512_mask_cmpge_epi32_mask(mask0, v0, more0.threshold);
      if (slabs > 1) {
        const Vec sum = add32(scale(sums[1], 1, i), load(b + 16));
        const Vec v1 = wide_values<E>(t, more1, at + 16, mask1, shift + c + 16, sum);
        signs |= std::uint32_t(_mm512_mask_cmpge_epi32_mask(mask1, v1, more1.threshold)) << 16;
      }
      if (bits) {
        put_signs(bits, word, signs);
        bits += t.bits_step;
      }
    }
    return;
  }
  if (t.channels == 16) {
    const auto twice = [](Vec v) OVSW_INLINE_LAMBDA { return _mm512_broadcast_i64x4(_mm512_castsi512_si256(v)); };
    const More both = {twice(more.slope), twice(more.positive), twice(more.threshold)};
    for (; i + 1 < pixels; i += 2, at += 32, sums += 2 * step) {
      const Vec q0 = shift_add<E>(t, at, mask0, shift, add32(scale(sums[0], 0, i), load(base[i])));
      const Vec q1 = shift_add<E>(t, at + 16, mask0, shift, add32(scale(sums[step], 0, i + 1), load(base[i + 1])));
      put_two<E>(t, at, both, bits, q0, q1);
      if (bits) bits += 2 * t.bits_step;
    }
  }
  for (; i < pixels; ++i, at += t.channels, sums += step) {
    const std::int32_t* b = base[i] + c;
    const Vec q0 = shift_add<E>(t, at, mask0, shift + c, add32(scale(sums[0], 0, i), load(b)));
    Vec q1 = q0;
    if (slabs > 1) q1 = shift_add<E>(t, at + 16, mask1, shift + c + 16, add32(scale(sums[1], 1, i), load(b + 16)));
    put32<E>(t, at, more, mask, bits, word, slabs, q0, q1);
    if (bits) bits += t.bits_step;
  }
}

// The same for any number of slabs, and sums that are right as they are.
template <typename E>
OVSW_INLINE void finish_sums(const TargetOf<E>& t, const std::int32_t* shift, const std::int32_t* const* base,
                             std::int64_t pixel, int pixels, int c, int slabs, const Vec* sums, int step) {
  for (int v = 0; v < slabs; v += 2) {
    finish<E>(t, shift, base, pixel, pixels, c + 16 * v, slabs - v, sums + v, step,
              [](Vec sum, int, int) { return sum; });
  }
}

#else

// 16 channels from c on, of which n > 0 exist, at element `at` of the maps, from sums (base included) of the halves.
// Writes the values, and returns numbers that are negative where bits are 0.
template <typename E>
OVSW_INLINE Vec finish16(const TargetOf<E>& t, std::int64_t at, int c, int n, const std::int32_t* shift,
                         const More& more, Vec sum0, Vec sum1) {
  if constexpr (E::kWide) {
    const More more0 = wide_more_at(t, c), more1 = wide_more_at(t, c + 8);
    const Vec v0 = wide_values<E>(t, more0, at, n, shift, sum0);
    const Vec v1 = wide_values<E>(t, more1, at + 8, n - 8, shift + 8, sum1);
    if (!t.threshold) return pack16(v0, v1);
    return pack16(_mm256_cmpgt_epi32(more0.threshold, v0), _mm256_cmpgt_epi32(more1.threshold, v1));
  }
  const Vec q0 = shift_add<E>(t, at, n, shift, sum0);
  const Vec q1 = shift_add<E>(t, at + 8, n - 8, shift + 8, sum1);
  const Vec v = values<E>(t, more, q0, q1);
  if (t.out) {
    if (n >= 16) {
      store(t.out + at, v);
    } else {
      store_some(t.out + at, v, n, sizeof *t.out);
    }
  }
  if constexpr (E::kMore) return _mm256_cmpgt_epi16(more.threshold, v);
  return v;
}

// The last bits of a pixel, those of channels from c on, to the end of their word.
OVSW_INLINE void put_last(unsigned char* to, int c, std::uint64_t bits) {
  if (c % 64 == 0) {
    std::memcpy(to + c / 8, &bits, sizeof bits);
  } else {
    std::memcpy(to + c / 8, &bits, sizeof bits - std::size_t(c % 64) / 8);
  }
}

// The signs of channels c to c + 31, c a multiple of 32, of which n exist, to byte c / 8 of a pixel's bits; v1 counts
// only if n > 16. The end of the last word is zero.
OVSW_INLINE void put_bits32(unsigned char* to, int c, int n, Vec v0, Vec v1) {
  const Vec bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(v0, v1), _MM_SHUFFLE(3, 1, 2, 0));
  const std::uint32_t mask = ~std::uint32_t(_mm256_movemask_epi8(bytes));
  if (n >= 32 && (n > 32 || c % 64 != 0)) {
    std::memcpy(to + c / 8, &mask, sizeof mask);
  } else {
    put_last(to, c, n < 32 ? mask & ((1u << n) - 1) : mask);
  }
}

// The same for channels c to c + 15, c a multiple of 16.
OVSW_INLINE void put_bits16(unsigned char* to, int c, int n, Vec v) {
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const std::uint32_t mask = ~std::uint32_t(_mm_movemask_epi8(bytes));
  if (n > 16) {
    std::memcpy(to + c / 8, &mask, sizeof(std::uint16_t));
  } else {
    put_last(to, c, mask & ((1u << n) - 1));
  }
}

// The sums, base not included, of `pixels` pixels x `slabs` of 16 channels from channel c; they lie `step` registers
// per pixel apart.
template <typename E>
OVSW_INLINE void finish_sums(const TargetOf<E>& t, const std::int32_t* shift, const std::int32_t* const* base,
                             std::int64_t pixel, int pixels, int c, int slabs, const Vec* sums, int step) {
  for (const int last = c + 16 * slabs; c < last; c += 16, sums += 2) {
    const int n = t.channels - c;
    const More more = more_at<E>(t, c);
    for (int i = 0; i < pixels; ++i) {
      const Vec* sum = sums + i * step;
      const std::int32_t* b = base[i] + c;
      const Vec v = finish16<E>(t, (pixel + i) * t.channels + c, c, n, shift + c, more, add32(sum[0], load(b)),
                                add32(sum[1], load(b + 8)));
      if (t.bits) put_bits16(t.bits + (pixel + i) * t.bits_step, c, n, v);
    }
  }
}

#endif

}  // namespace ovsw::OVSW_ISA::x86
