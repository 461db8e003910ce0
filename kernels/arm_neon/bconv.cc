// The integer binary convolution for ARM: tiles of 8 pixels x 8 output channels, three instructions per 128 products.
//
// A patch is the bits under one output pixel, joined byte by byte: tap after tap, each ceil(C / 8) bytes. With x a
// vector of 16 bytes of a patch and w0..w3 the same bytes of four output channels,
//     t = ADDP(ADDP(CNT(x ^ w0), CNT(x ^ w1)), ADDP(CNT(x ^ w2), CNT(x ^ w3)))
// holds 4 bytes of counts per channel, each at most 32, and UADALP adds them to 16-bit sums, two per channel: 12
// instructions for 4 x 128 products, no byte lane ever near 255, and no reduction left but one ADDP at the end.
//
// After the last whole vector a patch has 0, 2, 4 or 8 bytes left (the tail, padded with zeros to one of these sizes).
// It would leave most of a vector empty, so 8, 4 or 2 channels share one: the patch's tail is repeated over the vector,
// and the counts come out in the order that the sums need.
//     2 bytes (ResNet20, 16 channels: 18 bytes)  c0 .. c7          add to the final 8 sums
//     4 bytes (32 channels: 36 bytes)            c0 .. c3          add like t
//     8 bytes (64 channels: 72 bytes)            c0 c1 and c2 c3   one ADDP, add like t
//
// Packed weights: panels of 8 channels, each the tail's vectors, then [vector of the patch][channel]; the patches of a
// tile: the repeated tails, then [vector][pixel].
//
// A window scale adds a product of two vectors, ones of each patch and scales of the channels, to the tile's bases.
//
// 16 sums, 8 pixels, 4 weights and 4 temporaries use all 32 registers, hence the assembly.

#include "kernels/arm_neon/assembly.h"
#include "kernels/arm_neon/epilogue.h"

namespace ovsw::OVSW_ISA::neon {
namespace {

// 16-bit sums hold this many products.
constexpr std::int64_t kMaxBits = 65535;

struct Layout {
  int words;              // per pixel of the input
  std::size_t tap_bytes;  // per tap of a patch
  std::size_t row_bytes;  // per row of taps
  std::size_t bytes;      // per patch
  int vectors, tail;
  bool wide;  // sums may need 32 bits
  std::size_t panel_bytes, panels;
};

Layout layout(const Shape& s) {
  Layout l{};
  l.words = ceil_div(s.in_c, kWordBits);
  l.tap_bytes = std::size_t(ceil_div(s.in_c, 8));
  l.row_bytes = l.tap_bytes * std::size_t(s.window_w);
  l.bytes = l.row_bytes * std::size_t(s.window_h);
  l.wide = std::int64_t(l.bytes) * 8 > kMaxBits;
  const int rest = int(l.bytes % kVector);
  l.vectors = int(l.bytes / kVector);
  l.tail = rest > 8 ? 16 : rest > 4 ? 8 : rest > 2 ? 4 : rest > 0 ? 2 : 0;
  if (l.tail && (l.tail == 16 || l.vectors == 0 || l.wide)) {
    l.tail = 0;
    ++l.vectors;
  }
  l.panel_bytes = std::size_t(l.vectors * kVector + l.tail) * kPanel;
  l.panels = std::size_t(ceil_div(s.out_c, kPanel));
  return l;
}

// Rows of the image with only the bytes that hold channels.
struct Compact {
  static void row(const std::uint8_t* from, std::uint8_t* to, int columns, const RowShape& r) {
    if (r.from_bytes == r.to_bytes) {
      std::memcpy(to, from, std::size_t(columns) * r.to_bytes);
      return;
    }
    int x = 0;
    if (r.from_bytes == 8 && (r.to_bytes == 2 || r.to_bytes == 4)) {
      for (; x + 8 <= columns; x += 8, from += 64) {
        const std::uint32_t* f = reinterpret_cast<const std::uint32_t*>(from);
        const uint32x4_t a = vuzp1q_u32(vld1q_u32(f), vld1q_u32(f + 4));
        const uint32x4_t b = vuzp1q_u32(vld1q_u32(f + 8), vld1q_u32(f + 12));
        if (r.to_bytes == 4) {
          vst1q_u8(to, vreinterpretq_u8_u32(a));
          vst1q_u8(to + 16, vreinterpretq_u8_u32(b));
        } else {
          vst1q_u8(to, vreinterpretq_u8_u16(vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b))));
        }
        to += 8 * r.to_bytes;
      }
    }
    for (; x < columns; ++x, from += r.from_bytes, to += r.to_bytes) {
      for (std::size_t i = 0; i < r.to_bytes; ++i) to[i] = from[i];
    }
  }
};

RowShape rows_of(const Shape& s, const Layout& l) {
  const std::size_t from = std::size_t(l.words) * sizeof(std::uint64_t);
  return row_shape(s, from, l.tap_bytes, from != l.tap_bytes);
}

// Per panel: twice the multipliers, for the products with unsigned 16-bit counts, then the negated shifts.
constexpr std::size_t kConstants = 48;

struct Scratch {
  std::size_t joined, constants, bases, rows, bytes;  // offsets; patches come first
};

Scratch scratch_layout(const Shape& s, const Layout& l) {
  Scratch o{};
  o.joined = std::size_t(l.vectors + 1) * kTile * kVector;
  o.constants = o.joined + round_up(std::size_t(l.vectors + 1) * kVector, 64);
  o.bases = o.constants + round_up(l.panels * kConstants, 64);
  o.rows = o.bases + std::size_t(kTile * padded_channels(s.out_c)) * sizeof(std::int32_t);
  o.bytes = o.rows + row_scratch_bytes(s, rows_of(s, l));
  return o;
}

OVSW_INLINE void copy16(std::uint8_t* to, const std::uint8_t* from) { vst1q_u8(to, vld1q_u8(from)); }
OVSW_INLINE void copy8(std::uint8_t* to, const std::uint8_t* from) { vst1_u8(to, vld1_u8(from)); }
OVSW_INLINE void copy4(std::uint8_t* to, const std::uint8_t* from) { std::memcpy(to, from, 4); }
OVSW_INLINE std::uint64_t read8(const std::uint8_t* from) {
  std::uint64_t v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
OVSW_INLINE void repeat_tail(std::uint8_t* to, const std::uint8_t* from, int tail) {
  if (tail == 2) {
    std::uint16_t v;
    std::memcpy(&v, from, sizeof v);
    vst1q_u8(to, vreinterpretq_u8_u16(vdupq_n_u16(v)));
  } else if (tail == 4) {
    std::uint32_t v;
    std::memcpy(&v, from, sizeof v);
    vst1q_u8(to, vreinterpretq_u8_u32(vdupq_n_u32(v)));
  } else {
    vst1q_u8(to, vreinterpretq_u8_u64(vdupq_n_u64(read8(from))));
  }
}

// A run of `run` patches, the first `at` bytes into the rows and each `step` bytes after the one before; `to` is the
// first's first vector, `next` the distance from there to its second.
struct Run {
  const Shape& s;
  const Layout& l;
  std::uint8_t* joined;
  std::size_t step;
  const std::uint8_t* const* rows;
  std::size_t at;
  int run;
  std::uint8_t* to;
  std::int64_t next;
};

// Rows of whole vectors, a multiple of kUnroll of them.
template <int kUnroll>
void gather_vectors(const Run& r) {
  std::uint8_t* to = r.to;
  const std::size_t step = r.step, row_bytes = r.l.row_bytes;
  const std::int64_t next = r.next;
  const int run = r.run;
  for (int k = 0; k < r.s.window_h; ++k, to += std::int64_t(row_bytes / kVector) * next) {
    const std::uint8_t* from = r.rows[k] + r.at;
    for (int p = 0; p < run; ++p, from += step) {
      std::uint8_t* out = to + p * kVector;
      for (std::size_t i = 0; i < row_bytes; i += kUnroll * kVector) {
        Unroll<kUnroll>::run([&](int j)
                                 OVSW_INLINE_LAMBDA { store_step(out, vld1q_u8(from + i + j * kVector), next); });
      }
    }
  }
}

// 3x3 over 16, 32 or 64 channels: rows a, b, c of three units of kUnit bytes.
template <int kUnit>
void gather_3x3(const Run& r) {
  const std::uint8_t *a = r.rows[0] + r.at, *b = r.rows[1] + r.at, *c = r.rows[2] + r.at;
  std::uint8_t *to = r.to, *to1 = to + r.next, *to2 = to1 + r.next, *to3 = to2 + r.next, *to4 = to3 + r.next;
  const std::size_t step = r.step, end = std::size_t(r.run) * kVector;
  for (std::size_t i = 0; i < end; i += kVector, a += step, b += step, c += step) {
    if constexpr (kUnit == 8) {  // aa ab bb cc and c
      vst1q_u8(to + i, vreinterpretq_u8_u64(vld1q_dup_u64(reinterpret_cast<const std::uint64_t*>(c + 16))));
      copy16(to1 + i, a);
      vst1q_u8(to2 + i, vcombine_u8(vld1_u8(a + 16), vld1_u8(b)));
      copy16(to3 + i, b + 8);
      copy16(to4 + i, c);
    } else if constexpr (kUnit == 4) {  // aaab bbcc and c
      vst1q_u8(to + i, vreinterpretq_u8_u32(vld1q_dup_u32(reinterpret_cast<const std::uint32_t*>(c + 8))));
      copy8(to1 + i, a);
      copy4(to1 + i + 8, a + 8);
      copy4(to1 + i + 12, b);
      copy8(to2 + i, b + 4);
      copy8(to2 + i + 8, c);
    } else {  // aaabbbcc and c
      vst1q_u8(to + i, vreinterpretq_u8_u16(vld1q_dup_u16(reinterpret_cast<const std::uint16_t*>(c + 4))));
      const std::uint64_t mid = read8(b);
      const std::uint64_t words[2] = {(read8(a) << 16 >> 16) | mid << 48, (mid << 16 >> 32) | read8(c) << 32};
      std::memcpy(to1 + i, words, sizeof words);
    }
  }
}

void gather_any(const Run& r) {
  const Layout& l = r.l;
  for (int p = 0; p < r.run; ++p) {
    const std::size_t at = r.at + std::size_t(p) * r.step;
    for (int k = 0; k < r.s.window_h; ++k) std::memcpy(r.joined + k * l.row_bytes, r.rows[k] + at, l.row_bytes);
    std::uint8_t* out = r.to + p * kVector;
    if (l.tail) {
      repeat_tail(out, r.joined + std::size_t(l.vectors) * kVector, l.tail);
      out += r.next;
    }
    for (int v = 0; v < l.vectors; ++v) store_step(out, vld1q_u8(r.joined + v * kVector), r.next);
  }
}

using GatherFn = void (*)(const Run&);

GatherFn gather_fn(const Shape& s, const Layout& l) {
  if (l.row_bytes % (3 * kVector) == 0) return gather_vectors<3>;
  if (l.row_bytes % kVector == 0) return gather_vectors<1>;
  if (s.window_h == 3 && s.window_w == 3) {
    if (l.tap_bytes == 8) return gather_3x3<8>;
    if (l.tap_bytes == 4) return gather_3x3<4>;
    if (l.tap_bytes == 2) return gather_3x3<2>;
  }
  return gather_any;
}

// Twice the number of ones in the patches of a tile of `pixels`. Always kTile numbers; those past the last are garbage.
void count_ones(const Layout& l, const std::uint8_t* patches, int pixels, std::int32_t* twice) {
  alignas(16) std::uint8_t once[kVector] = {};  // of a tail that is repeated
  std::memset(once, 0xff, std::size_t(l.tail));
  uint8x16_t mask = vld1q_u8(once);
  uint32x4_t sum[kTile];
  Unroll<kTile>::run([&](int p) OVSW_INLINE_LAMBDA { sum[p] = vdupq_n_u32(0); });
  for (int i = l.tail ? -1 : 0; i < l.vectors; ++i, patches += pixels * kVector) {
    if (i == 0) mask = vdupq_n_u8(0xff);
    Unroll<kTile>::run([&](int p) OVSW_INLINE_LAMBDA {
      const uint8x16_t x = vandq_u8(vld1q_u8(patches + p * kVector), mask);
      sum[p] = vpadalq_u16(sum[p], vpaddlq_u8(vcntq_u8(x)));
    });
  }
  Unroll<2>::run([&](int h) OVSW_INLINE_LAMBDA {
    const uint32x4_t a = vpaddq_u32(sum[4 * h], sum[4 * h + 1]), b = vpaddq_u32(sum[4 * h + 2], sum[4 * h + 3]);
    vst1q_s32(twice + 4 * h, vreinterpretq_s32_u32(vshlq_n_u32(vpaddq_u32(a, b), 1)));
  });
}

// The bases of a tile and what the window scale adds to them, in `to`, padded_channels(out_c) per pixel.
void add_window(const Layout& l, Tile& t, int pixels, std::int32_t* to) {
  const KernelArgs& a = *t.args;
  const auto* window = a.constant<std::int16_t>(kWindow) + a.first_channel;
  const auto* window32 = a.constant<std::int32_t>(kWindow) + a.first_channel;  // if wide
  const int channels = a.last_channel - a.first_channel, stride = padded_channels(a.shape.out_c);
  std::int32_t twice[kTile];
  count_ones(l, t.patches, pixels, twice);
  for (int p = 0; p < pixels; ++p, to += stride) {
    const std::int32_t* base = t.base[p];
    const int32x4_t ones = vdupq_n_s32(twice[p]);
    t.base[p] = to;
    for (int c = 0; c < channels; c += kPanel) {
      int32x4_t low, high, n, m;
      load_step(low, high, base);
      if (a.wide) {
        n = vld1q_s32(window32 + c);
        m = vld1q_s32(window32 + c + 4);
      } else {
        n = vmovl_s16(vld1_s16(window + c));
        m = vmovl_s16(vld1_s16(window + c + 4));
      }
      store_pair(to + c, vmlaq_s32(low, n, ones), vmlaq_s32(high, m, ones));
    }
  }
}

// Registers: pixel p in vp, weights in v8 v9 v18 v19, sums of pixel p in %[sp] (channels 0-3) and v2p (4-7),
// temporaries v28-v31.
#define OVSW_SUM1(p) "%[s" #p "]"
#define OVSW_SUM2(p) "v2" #p
#define OVSW_WEIGHTS OVSW_LOAD_WW(8, 9) OVSW_LOAD_WW(18, 19)

#define OVSW_COUNTS(p)                 \
  "eor v28.16b, v" #p                  \
  ".16b, v8.16b\n\t"                   \
  "eor v29.16b, v" #p                  \
  ".16b, v9.16b\n\t"                   \
  "eor v30.16b, v" #p                  \
  ".16b, v18.16b\n\t"                  \
  "eor v31.16b, v" #p                  \
  ".16b, v19.16b\n\t"                  \
  "cnt v28.16b, v28.16b\n\t"           \
  "cnt v29.16b, v29.16b\n\t"           \
  "cnt v30.16b, v30.16b\n\t"           \
  "cnt v31.16b, v31.16b\n\t"           \
  "addp v28.16b, v28.16b, v29.16b\n\t" \
  "addp v30.16b, v30.16b, v31.16b\n\t"
#define OVSW_QUAD(p, sum, op) \
  OVSW_COUNTS(p)              \
  "addp v28.16b, v28.16b, v30.16b\n\t" op " " sum(p) ".8h, v28.16b\n\t"
#define OVSW_TAIL8(p, sum) \
  OVSW_COUNTS(p)           \
  "uaddlp " OVSW_SUM1(p) ".8h, v28.16b\n\t"   \
  "uaddlp " OVSW_SUM2(p) ".8h, v30.16b\n\t"
#define OVSW_TAIL4(p, sum) \
  "eor v28.16b, v" #p ".16b, v8.16b\n\t"      \
  "eor v29.16b, v" #p ".16b, v9.16b\n\t"      \
  "cnt v28.16b, v28.16b\n\t"                  \
  "cnt v29.16b, v29.16b\n\t"                  \
  "uaddlp " OVSW_SUM1(p) ".8h, v28.16b\n\t"   \
  "uaddlp " OVSW_SUM2(p) ".8h, v29.16b\n\t"
#define OVSW_END(p, sum) "addp " OVSW_SUM1(p) ".8h, " OVSW_SUM1(p) ".8h, " OVSW_SUM2(p) ".8h\n\t"

#define OVSW_STEP(P, op) \
  OVSW_PIXELS##P OVSW_WEIGHTS OVSW_EACH##P(OVSW_QUAD, OVSW_SUM1, op) OVSW_WEIGHTS OVSW_EACH##P(OVSW_QUAD, OVSW_SUM2, op)
#define OVSW_WHOLE(P)         \
  OVSW_STEP(P, "uaddlp")      \
  "subs %w[n], %w[n], #1\n\t" \
  "b.eq 2f\n\t" OVSW_LOOP(1, OVSW_STEP(P, "uadalp")) "2:\n\t" OVSW_EACH##P(OVSW_END, )
#define OVSW_AFTER_TAIL(P) OVSW_LOOP(1, OVSW_STEP(P, "uadalp")) OVSW_EACH##P(OVSW_END, )

#define OVSW_ASM(text)                                                                                                \
  __asm__ volatile(text                                                                                               \
                   : [s0] "=&w"(s[0]), [s1] "=&w"(s[1]), [s2] "=&w"(s[2]), [s3] "=&w"(s[3]), [s4] "=&w"(s[4]),        \
                     [s5] "=&w"(s[5]), [s6] "=&w"(s[6]), [s7] "=&w"(s[7]), [x] "+&r"(x), [w] "+&r"(w), [n] "+&r"(n)   \
                   :                                                                                                  \
                   : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v18", "v19", "v20", \
                     "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

// s[p] = the popcounts of 8 channels for pixel p. Runs through n vectors of the patches and one panel of weights.
template <int P, int kTail>
struct Popcounts;

#define OVSW_POPCOUNTS(P)                                                                              \
  template <int kTail>                                                                                 \
  struct Popcounts<P, kTail> {                                                                         \
    static OVSW_INLINE void run(uint16x8_t* s, const std::uint8_t* x, const std::uint8_t*& w, int n) { \
      if constexpr (kTail == 8) {                                                                      \
        OVSW_ASM(OVSW_PIXELS##P OVSW_WEIGHTS OVSW_EACH##P(OVSW_TAIL8, ) OVSW_AFTER_TAIL(P));           \
      } else if constexpr (kTail == 4) {                                                               \
        OVSW_ASM(OVSW_PIXELS##P OVSW_LOAD_WW(8, 9) OVSW_EACH##P(OVSW_TAIL4, ) OVSW_AFTER_TAIL(P));     \
      } else {                                                                                         \
        OVSW_ASM(OVSW_WHOLE(P));                                                                       \
      }                                                                                                \
    }                                                                                                  \
  };
OVSW_SIZES(OVSW_POPCOUNTS)

// A tail of 2 bytes comes last, as its counts need no ADDP.
template <int P>
OVSW_INLINE void popcounts_tail2(uint16x8_t* s, const std::uint8_t* x, const std::uint8_t*& w, int n) {
  const std::uint8_t* const tails = x;
  const std::uint8_t* const weights = w;
  w += kVector;
  Popcounts<P, 0>::run(s, x + P * kVector, w, n);
  const uint8x16_t tail = vld1q_u8(weights);
  Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA {
    s[p] = vpadalq_u8(s[p], vcntq_u8(veorq_u8(vld1q_u8(tails + p * kVector), tail)));
  });
}

// The q of a panel of a wide op, channels from c on, from its popcounts in rows of kPanel: one pixel after the other.
class WideSums {
 public:
  OVSW_INLINE WideSums(const Tile& t, int c, const std::uint16_t* counts)
      : base_(t.base), from_(c - t.args->first_channel), counts_(reinterpret_cast<const std::uint8_t*>(counts)) {
    const auto* scale = t.args->constant<std::int32_t>(kScale) + c;
    const auto* shift = t.args->constant<std::int32_t>(kShift) + c;
    twice0_ = vshlq_n_s32(vld1q_s32(scale), 1);
    twice1_ = vshlq_n_s32(vld1q_s32(scale + 4), 1);
    shift0_ = vnegq_s32(vld1q_s32(shift));
    shift1_ = vnegq_s32(vld1q_s32(shift + 4));
  }

  OVSW_INLINE void operator()(int32x4_t& v, int32x4_t& w) {
    const std::int32_t* base = *base_++ + from_;
    const uint16x8_t count = vreinterpretq_u16_u8(load_step(counts_));
    load_step(v, w, base);
    v = vmlsq_s32(v, vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(count))), twice0_);
    w = vmlsq_s32(w, vreinterpretq_s32_u32(vmovl_high_u16(count)), twice1_);
    v = vshlq_s32(v, shift0_);
    w = vshlq_s32(w, shift1_);
  }

 private:
  const std::int32_t* const* base_;
  std::int64_t from_;
  const std::uint8_t* counts_;
  int32x4_t twice0_, twice1_, shift0_, shift1_;
};

// All that follows, of any wide op.
OVSW_ONE_COPY void finish_any_counts(const Tile& t, int pixels, int c, const std::uint16_t* counts) {
  WideSums q(t, c, counts);
  std::int32_t rows[kTile * kPanel];
#pragma GCC unroll 1
  for (int p = 0; p < pixels; ++p) {
    int32x4_t v, w;
    q(v, w);
    store_pair(rows + p * kPanel, v, w);
  }
  if (c + kPanel <= t.args->shape.out_c) {
    finish_wide_rows(t, pixels, c, rows);
  } else {
    finish_partial(*t.args, t.pixel, pixels, c, rows);
  }
}

OVSW_ONE_COPY void finish_wide_counts(const Tile& t, int pixels, int c, const std::uint16_t* counts) {
  if (!t.stream || c + kPanel > t.args->shape.out_c) return finish_any_counts(t, pixels, c, counts);
  const WideSums q(t, c, counts);
  if (t.args->act == Act::kPrelu) return finish_wide<true>(t, pixels, c, q, Slopes(*t.args, c));
  finish_wide<true>(t, pixels, c, q, NoActivation());
}

template <int P, int kTail>
void tile(const Tile& t) {
  Finish<P, false> finish(t);
  const std::uint8_t *w = t.weights, *constants = t.constants;
  const std::int32_t* base[P];
  Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { base[p] = t.base[p]; });
  bool more;
  do {
    uint16x8_t s[kTile];
    if constexpr (kTail == 2) {
      popcounts_tail2<P>(s, t.patches, w, t.steps);
    } else {
      Popcounts<P, kTail>::run(s, t.patches, w, t.steps);
    }
    if (__builtin_expect(t.wide, 0)) {
      std::uint16_t counts[P * kPanel];
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { vst1q_u16(counts + p * kPanel, s[p]); });
      finish_wide_counts(t, P, finish.skip_panel(), counts);
      more = finish.left > 0;
      continue;
    }
    const uint16x8_t mult = vld1q_u16(reinterpret_cast<const std::uint16_t*>(constants));
    const int32x4_t shift0 = vld1q_s32(reinterpret_cast<const std::int32_t*>(constants + 16));
    const int32x4_t shift1 = vld1q_s32(reinterpret_cast<const std::int32_t*>(constants + 32));
    constants += kConstants;
    more = finish.panel(shift0, shift1, [&](int p, int32x4_t& lo, int32x4_t& hi) OVSW_INLINE_LAMBDA {
      // base - 2 * count * mult modulo 2^32; counts and 2 * mult are unsigned, as mult >= 0.
      load_step(lo, hi, base[p]);
      lo = vreinterpretq_s32_u32(vmlsl_u16(vreinterpretq_u32_s32(lo), vget_low_u16(s[p]), vget_low_u16(mult)));
      hi = vreinterpretq_s32_u32(vmlsl_high_u16(vreinterpretq_u32_s32(hi), s[p], mult));
    });
  } while (more);
}

template <int kTail>
TileFn tile_fn(int pixels) {
  static constexpr TileFn kFns[kTile] = {tile<1, kTail>, tile<2, kTail>, tile<3, kTail>, tile<4, kTail>,
                                         tile<5, kTail>, tile<6, kTail>, tile<7, kTail>, tile<8, kTail>};
  return kFns[pixels - 1];
}

// For more products than 16-bit sums can hold: one pixel and channel after the other.
void tile_wide(const Tile& t, int pixels) {
  const KernelArgs& a = *t.args;
  const auto* scale = a.constant<std::int16_t>(kScale);
  const auto* scale32 = a.constant<std::int32_t>(kScale);  // if wide
  const auto* shift = a.constant<std::int32_t>(kShift);
  const int first = a.first_channel;
  for (int c0 = first; c0 < a.last_channel; c0 += kPanel) {
    const std::uint8_t* panel = t.weights + std::size_t(c0 - first) * t.steps * kVector;
    for (int p = 0; p < pixels; ++p) {
      std::int32_t q[kPanel] = {};
      for (int j = 0; j < kPanel && c0 + j < a.last_channel; ++j) {
        std::uint32_t count = 0;
        for (int i = 0; i < t.steps; ++i) {
          const uint8x16_t x = vld1q_u8(t.patches + (std::size_t(i) * pixels + p) * kVector);
          count += vaddlvq_u8(vcntq_u8(veorq_u8(x, vld1q_u8(panel + (std::size_t(i) * kPanel + j) * kVector))));
        }
        const int c = c0 + j;
        const auto factor = std::uint32_t(a.wide ? scale32[c] : scale[c]);
        q[j] = std::int32_t(std::uint32_t(t.base[p][c - first]) - 2 * count * factor) >> shift[c];
      }
      finish_partial(a, t.pixel + p, 1, c0, q);
    }
  }
}

}  // namespace

std::size_t Bconv::packed_bytes(const Shape& s) {
  const Layout l = layout(s);
  return l.panels * l.panel_bytes;
}

void Bconv::pack(const Shape& s, const void* weights, void* packed) {
  const Layout l = layout(s);
  auto* out = static_cast<std::uint8_t*>(packed);
  std::memset(out, 0, packed_bytes(s));
  const auto* from = static_cast<const std::uint8_t*>(weights);
  const std::size_t whole = std::size_t(l.vectors) * kVector;
  for (int c = 0; c < s.out_c; ++c) {
    const std::size_t lane = std::size_t(c % kPanel);
    std::uint8_t* panel = out + std::size_t(c / kPanel) * l.panel_bytes;
    for (std::size_t i = 0; i < l.bytes; ++i) {
      const std::size_t tap = std::size_t(c) * s.window_h * s.window_w + i / l.tap_bytes;
      const std::uint8_t byte = from[tap * l.words * sizeof(std::uint64_t) + i % l.tap_bytes];
      const std::size_t tails = std::size_t(l.tail) * kPanel;
      panel[i < whole ? tails + (i / kVector * kPanel + lane) * kVector + i % kVector : lane * l.tail + i - whole] =
          byte;
    }
  }
}

std::size_t Bconv::scratch_bytes(const Shape& s) { return scratch_layout(s, layout(s)).bytes; }

void Bconv::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (begin >= end) return;
  const Shape& s = args.shape;
  const Layout l = layout(s);
  const Scratch o = scratch_layout(s, l);
  auto* memory = static_cast<std::uint8_t*>(scratch);
  std::uint8_t *patches = memory, *joined = memory + o.joined, *constants = memory + o.constants;
  std::memset(joined, 0, o.constants - o.joined);
  const auto* scale = args.constant<std::int16_t>(kScale);
  const auto* shift = args.constant<std::int32_t>(kShift);
  for (int c = args.first_channel; c < args.last_channel; c += kPanel) {
    std::uint8_t* to = constants + std::size_t(c / kPanel) * kConstants;
    vst1q_u8(to, vreinterpretq_u8_s16(vshlq_n_s16(vld1q_s16(scale + c), 1)));
    vst1q_u8(to + 16, vreinterpretq_u8_s32(vnegq_s32(vld1q_s32(shift + c))));
    vst1q_u8(to + 32, vreinterpretq_u8_s32(vnegq_s32(vld1q_s32(shift + c + 4))));
  }

  Walk<Compact> walk(args, rows_of(s, l), begin, memory + o.rows);
  const std::size_t step = l.tap_bytes * std::size_t(s.stride_w);

  const bool window = args.constants[kWindow] != nullptr;
  auto* bases = reinterpret_cast<std::int32_t*>(memory + o.bases);
  const GatherFn gather = gather_fn(s, l);
  const auto tile_of = l.tail == 8 ? tile_fn<8> : l.tail == 4 ? tile_fn<4> : l.tail == 2 ? tile_fn<2> : tile_fn<0>;

  Tile t{};
  init_tile(t, args);
  t.patches = patches;
  const std::size_t first_panel = std::size_t(args.first_channel / kPanel);
  t.weights = static_cast<const std::uint8_t*>(args.weights) + first_panel * l.panel_bytes;
  t.constants = constants + first_panel * kConstants;
  t.steps = l.vectors;
  for_tiles(begin, end, [&](std::int64_t pixel, int pixels) OVSW_INLINE_LAMBDA {
    move_tile(t, pixel);
    walk.next(pixels, t.base, [&](const std::uint8_t* const* rows, int x, int p, int run) OVSW_INLINE_LAMBDA {
      gather({s, l, joined, step, rows, std::size_t(x) * step, run, patches + p * kVector, pixels * kVector});
    });
    if (window) add_window(l, t, pixels, bases);
    clear_last_words(t, pixels);
    if (l.wide) {
      tile_wide(t, pixels);
    } else {
      tile_of(pixels)(t);
    }
  });
}

}  // namespace ovsw::OVSW_ISA::neon
