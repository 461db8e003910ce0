// Gathers and multiplies patches, 8 pixels x 8 output channels at a time: 16 sums of 4 channels each in registers, with
// the pixels' values as the indexed operand, so that no sum has to be added across lanes.
//
// Of 16 bits: SMLAL by lane, 4 products per instruction.
//     packed[panel][value of the patch][channel]
//
// A patch is gathered into one run of bytes and padded with values that meet zero weights.
#pragma once

#include "kernels/arm_neon/assembly.h"
#include "kernels/arm_neon/epilogue.h"

namespace ovsw::OVSW_ISA::neon {

// Patches of values of `size` bytes.
struct Layout {
  std::size_t row_bytes;  // of a patch's row of taps
  std::size_t bytes;
  std::size_t values;
  std::size_t vectors;  // whole or not
  std::size_t joined;   // bytes from one joined patch to the next
};

inline Layout layout(const Shape& s, std::size_t size) {
  Layout l{};
  l.row_bytes = std::size_t(s.window_w) * s.in_c * size;
  l.bytes = l.row_bytes * s.window_h;
  l.values = l.bytes / size;
  l.vectors = (l.bytes + kVector - 1) / kVector;
  l.joined = l.vectors * kVector + 2 * kVector;  // rows are copied in whole vectors
  return l;
}

OVSW_INLINE void copy16(std::uint8_t* to, const std::uint8_t* from) { vst1q_u8(to, vld1q_u8(from)); }

struct Copy {
  static constexpr bool kConverts = false;
  static void row(const std::uint8_t* from, std::uint8_t* to, int columns, const RowShape& r) {
    std::memcpy(to, from, std::size_t(columns) * r.to_bytes);
  }
};

// How wide values are in memory and in a patch, and how rows are copied: of maps, and of pixels in their own file.
struct Map {
  using Convert = Copy;
  static constexpr std::size_t kFrom = 2, kTo = 2;
};
template <typename Input>
RowShape rows_of(const Shape& s) {
  return row_shape(s, s.in_c * Input::kFrom, s.in_c * Input::kTo, Input::Convert::kConverts);
}

struct Scratch {
  std::size_t joined, rows, bytes;  // offsets; patches come first
};

template <typename Input>
Scratch scratch_layout(const Shape& s) {
  const Layout l = layout(s, Input::kTo);
  Scratch o{};
  o.joined = l.vectors * kTile * kVector;
  o.rows = o.joined + round_up(l.joined * kTile, 64);
  o.bytes = o.rows + row_scratch_bytes(s, rows_of<Input>(s));
  return o;
}

// A run of patches in one row of output pixels: joined ones, or interleaved ones if their rows are whole vectors.
struct Run {
  const Shape& s;
  const Layout& l;
  const std::uint8_t* const* rows;
  std::int64_t at, step;  // of the first patch, and between patches, in bytes of a row
  int run;
  std::uint8_t* to;
  std::int64_t next;  // direct: to a patch's next vector
};

inline void gather_direct(const Run& r) {
  std::uint8_t* to = r.to;
  const std::int64_t step = r.step, next = r.next;
  const std::size_t row_bytes = r.l.row_bytes;
  const int run = r.run;
  for (int k = 0; k < r.s.window_h; ++k, to += std::int64_t(row_bytes / kVector) * next) {
    const std::uint8_t* from = r.rows[k] + r.at;
    for (int p = 0; p < run; ++p, from += step) {
      std::uint8_t* out = to + p * kVector;
#pragma GCC unroll 4
      for (std::size_t i = 0; i < row_bytes; i += kVector) store_step(out, vld1q_u8(from + i), next);
    }
  }
}

// Rows of kVectors vectors, of which the last overlaps the one before. A row shorter than a vector writes past its end;
// the next row, and finally zeros, overwrite that.
template <int kVectors>
void gather_rows(const Run& r) {
  const std::size_t last = kVectors == 1 ? 0 : r.l.row_bytes - kVector;
  const std::int64_t step = r.step, next = std::int64_t(r.l.joined);
  std::uint8_t* to = r.to;
  for (int k = 0; k < r.s.window_h; ++k, to += r.l.row_bytes) {
    const std::uint8_t* from = r.rows[k] + r.at;
    const std::uint8_t* f[kVectors];
    std::uint8_t* t[kVectors];
    Unroll<kVectors>::run([&](int i) OVSW_INLINE_LAMBDA {
      f[i] = from + (i == kVectors - 1 ? last : std::size_t(i) * kVector);
      t[i] = to + (i == kVectors - 1 ? last : std::size_t(i) * kVector);
    });
    const auto patch = [&](int) OVSW_INLINE_LAMBDA {
      Unroll<kVectors>::run([&](int i) OVSW_INLINE_LAMBDA { store_step(t[i], load_step(f[i], step), next); });
    };
    if (r.run == kTile) {
      Unroll<kTile>::run(patch);
    } else {
      for (int p = 0; p < r.run; ++p) patch(p);
    }
  }
  if constexpr (kVectors == 1) {
    for (int p = 0; p < r.run; ++p, to += next) vst1q_u8(to, vdupq_n_u8(0));
  }
}

// Any rows, in whole vectors: what is written past the end is overwritten by the next row, or at last by zeros.
inline void gather_any(const Run& r) {
  for (int p = 0; p < r.run; ++p) {
    std::uint8_t* to = r.to + std::size_t(p) * r.l.joined;
    for (int k = 0; k < r.s.window_h; ++k, to += r.l.row_bytes) {
      const std::uint8_t* from = r.rows[k] + r.at + p * r.step;
      for (std::size_t i = 0; i < r.l.row_bytes; i += kVector) copy16(to + i, from + i);
    }
    vst1q_u8(to, vdupq_n_u8(0));
  }
}

using GatherFn = void (*)(const Run&);

inline GatherFn gather_fn(const Layout& l, bool direct) {
  if (direct) return gather_direct;
  if (l.row_bytes <= kVector) return gather_rows<1>;
  if (l.row_bytes <= 2 * kVector) return gather_rows<2>;
  if (l.row_bytes <= 3 * kVector) return gather_rows<3>;
  return gather_any;
}

// The joined patches of a tile, interleaved; start[p] = -128 * the sum of the bytes of patch p, if kSums.
template <int P, bool kSums>
void interleave(const Layout& l, const std::uint8_t* joined, std::uint8_t* patches, std::int32_t* start) {
  const std::uint8_t* from[P];
  Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { from[p] = joined + std::size_t(p) * l.joined; });
  uint32x4_t sum[kTile];
  Unroll<kTile>::run([&](int p) OVSW_INLINE_LAMBDA { sum[p] = vdupq_n_u32(0); });
  for (std::size_t left = l.vectors; left > 0; --left) {
    uint8x16_t v[P];
    Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { v[p] = load_step(from[p]); });
    Unroll<P / 2>::run([&](int i) OVSW_INLINE_LAMBDA { store_step(patches, v[2 * i], v[2 * i + 1]); });
    if constexpr (P % 2) store_step(patches, v[P - 1], kVector);
#if defined(__ARM_FEATURE_DOTPROD)
    if constexpr (kSums) {
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { sum[p] = vdotq_u32(sum[p], v[p], vdupq_n_u8(1)); });
    }
#endif
  }
  if constexpr (!kSums) return;
  Unroll<2>::run([&](int h) OVSW_INLINE_LAMBDA {
    const uint32x4_t a = vpaddq_u32(sum[4 * h], sum[4 * h + 1]), b = vpaddq_u32(sum[4 * h + 2], sum[4 * h + 3]);
    vst1q_s32(start + 4 * h, vnegq_s32(vreinterpretq_s32_u32(vshlq_n_u32(vpaddq_u32(a, b), 7))));
  });
}

// Calls run(pixels) for all tiles of [begin, end), t filled in and their patches gathered; kSums as above.
template <typename Input, bool kSums, typename Run>
OVSW_INLINE void conv(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch, Tile& t,
                      std::int32_t* start, Run run) {
  if (begin >= end) return;
  const Shape& s = args.shape;
  const Layout l = layout(s, Input::kTo);
  const Scratch o = scratch_layout<Input>(s);
  auto* patches = static_cast<std::uint8_t*>(scratch);
  std::uint8_t* joined = patches + o.joined;
  Walk<typename Input::Convert> walk(args, rows_of<Input>(s), begin, patches + o.rows);
  const auto step = std::int64_t(s.in_c * Input::kTo * s.stride_w);
  const bool direct = !kSums && l.row_bytes % kVector == 0;

  const GatherFn gather = gather_fn(l, direct);
  if (!direct) std::memset(joined, 0, l.joined * kTile);

  init_tile(t, args);
  t.patches = patches;
  for_tiles(begin, end, [&](std::int64_t pixel, int pixels) OVSW_INLINE_LAMBDA {
    move_tile(t, pixel);
    walk.next(pixels, t.base, [&](const std::uint8_t* const* rows, int x, int first, int n) OVSW_INLINE_LAMBDA {
      std::uint8_t* to = direct ? patches + first * kVector : joined + std::size_t(first) * l.joined;
      gather({s, l, rows, x * step, step, n, to, pixels * kVector});
    });
    if (!direct) {
      switch (pixels) {
#define OVSW_INTERLEAVE(P)                           \
  case P:                                            \
    interleave<P, kSums>(l, joined, patches, start); \
    break;
        OVSW_SIZES(OVSW_INTERLEAVE)
#undef OVSW_INTERLEAVE
      }
    }
    clear_last_words(t, pixels);
    run(pixels);
  });
}

// All panels of a tile: sums(a, b) gives the next panel's sums without base, of channels 0-3 and 4-7.
template <int P, typename Sums>
OVSW_INLINE void tile(const Tile& t, Sums sums) {
  Finish<P, true> finish(t);
  const std::int32_t* base[P];
  Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { base[p] = t.base[p]; });
  const std::int32_t* shift = t.args->constant<std::int32_t>(kShift) + t.args->first_channel;
  bool more;
  do {
    int32x4_t a[kTile], b[kTile];
    sums(a, b);
    int32x4_t shift0, shift1;
    load_step(shift0, shift1, shift);
    more =
        finish.panel(vnegq_s32(shift0), vnegq_s32(shift1), [&](int p, int32x4_t& lo, int32x4_t& hi) OVSW_INLINE_LAMBDA {
          load_step(lo, hi, base[p]);
          lo = vaddq_s32(lo, a[p]);
          hi = vaddq_s32(hi, b[p]);
        });
  } while (more);
}

#define OVSW_TILES(name) {name<1>, name<2>, name<3>, name<4>, name<5>, name<6>, name<7>, name<8>}

// ---- 16 bits

constexpr int kLanes = 8;  // values in a vector

// Registers: pixel p in vp, weights in v8 and v9, sums of pixel p in %[ap] (channels 0-3) and %[bp] (4-7).
#define OVSW_PRODUCTS(p, w, lane, op) \
  op " %[a" #p "].4s, v" #w ".4h, v" #p ".h[" #lane "]\n\t" op "2 %[b" #p "].4s, v" #w ".8h, v" #p ".h[" #lane "]\n\t"
#define OVSW_VALUES2(P, lane0, lane1, op) \
  OVSW_LOAD_WW(8, 9) OVSW_EACH##P(OVSW_PRODUCTS, 8, lane0, op) OVSW_EACH##P(OVSW_PRODUCTS, 9, lane1, "smlal")
#define OVSW_VALUES4(P, op) OVSW_PIXELS##P OVSW_VALUES2(P, 0, 1, op) OVSW_VALUES2(P, 2, 3, "smlal")
#define OVSW_VALUES8(P, op) OVSW_VALUES4(P, op) OVSW_VALUES2(P, 4, 5, "smlal") OVSW_VALUES2(P, 6, 7, "smlal")
#define OVSW_SUMS16                                                                                               \
  [a0] "=&w"(a[0]), [a1] "=&w"(a[1]), [a2] "=&w"(a[2]), [a3] "=&w"(a[3]), [a4] "=&w"(a[4]), [a5] "=&w"(a[5]),     \
      [a6] "=&w"(a[6]), [a7] "=&w"(a[7]), [b0] "=&w"(b[0]), [b1] "=&w"(b[1]), [b2] "=&w"(b[2]), [b3] "=&w"(b[3]), \
      [b4] "=&w"(b[4]), [b5] "=&w"(b[5]), [b6] "=&w"(b[6]), [b7] "=&w"(b[7])

// The sums of products of n vectors of the patches, and half a vector more if half is not 0, with a panel of weights.
template <int P>
struct Products;

#define OVSW_PRODUCT_SUMS(P)                                                                                           \
  template <>                                                                                                          \
  struct Products<P> {                                                                                                 \
    static OVSW_INLINE void run(int32x4_t* a, int32x4_t* b, const std::uint8_t* x, const std::uint8_t*& w, int n,      \
                                int half) {                                                                            \
      __asm__ volatile(OVSW_VALUES8(P, "smull") "subs %w[n], %w[n], #1\n\t" "b.eq 2f\n\t"                            \
                       OVSW_LOOP(1, OVSW_VALUES8(P, "smlal")) "2:\n\t" "cbz %w[half], 3f\n\t"                        \
                       OVSW_VALUES4(P, "smlal") "3:\n\t"                                                             \
                       : OVSW_SUMS16, [x] "+&r"(x), [w] "+&r"(w), [n] "+&r"(n)                                          \
                       : [half] "r"(half)                                                                            \
                       : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9"); \
    }                                                                                                                  \
  };
OVSW_SIZES(OVSW_PRODUCT_SUMS)

template <int P>
void tile16(const Tile& t) {
  const std::uint8_t* w = t.weights;
  tile<P>(
      t, [&](int32x4_t* a, int32x4_t* b) OVSW_INLINE_LAMBDA { Products<P>::run(a, b, t.patches, w, t.steps, t.rest); });
}

inline constexpr TileFn kTiles16[kTile] = OVSW_TILES(tile16);

// A multiple of 4, and at least one whole vector.
inline std::size_t padded_values(const Shape& s) {
  const std::size_t values = round_up(std::size_t(s.window_h) * s.window_w * s.in_c, 4);
  return values < kLanes ? kLanes : values;
}

inline std::size_t packed16_bytes(const Shape& s) {
  return std::size_t(ceil_div(s.out_c, kPanel)) * padded_values(s) * kPanel * sizeof(std::int16_t);
}

inline void pack16(const Shape& s, const void* weights, void* packed) {
  auto* out = static_cast<std::int16_t*>(packed);
  const auto* from = static_cast<const std::int16_t*>(weights);
  std::memset(out, 0, packed16_bytes(s));
  const std::size_t values = std::size_t(s.window_h) * s.window_w * s.in_c;
  for (int c = 0; c < s.out_c; ++c) {
    std::int16_t* panel = out + std::size_t(c / kPanel) * padded_values(s) * kPanel + c % kPanel;
    for (std::size_t k = 0; k < values; ++k) panel[k * kPanel] = *from++;
  }
}

template <typename Input>
void conv16(const KernelArgs& args, const void* weights, std::int64_t begin, std::int64_t end, void* scratch) {
  const std::size_t values = padded_values(args.shape);
  Tile t{};
  const std::size_t first = std::size_t(args.first_channel) * values * sizeof(std::int16_t);
  t.weights = static_cast<const std::uint8_t*>(weights) + first;
  t.steps = int(values / kLanes);
  t.rest = int(values % kLanes);
  conv<Input, false>(args, begin, end, scratch, t, nullptr,
                     [&](int pixels) OVSW_INLINE_LAMBDA { kTiles16[pixels - 1](t); });
}

}  // namespace ovsw::OVSW_ISA::neon
