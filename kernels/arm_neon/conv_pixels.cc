// The convolution over pixels without dot products, in 16 bits, as conv.h describes it. Where all weights have 8 bits
// and it is faster, four outputs of a row are computed together with half the products (kernels/portable/toom_cook.h):
// at each of the points kTile quads are multiplied as pixels are otherwise, and their sums transformed back. A header
// before the weights says which of the two it is.
//     packed[panel][point][value of the patch][channel]

#include "kernels/arm_neon/conv.h"
#include "kernels/portable/toom_cook.h"

namespace ovsw::OVSW_ISA::neon {
namespace {

using portable::kPoints;
using portable::kQuad;

struct Widen {
  static constexpr bool kConverts = true;
  static void row(const std::uint8_t* from, std::uint8_t* to, int columns, const RowShape& r) {
    const std::size_t n = std::size_t(columns) * r.from_bytes;
    auto* out = reinterpret_cast<std::uint16_t*>(to);
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const uint8x16_t v = vld1q_u8(from + i);
      vst1q_u16(out + i, vmovl_u8(vget_low_u8(v)));
      vst1q_u16(out + i + 8, vmovl_high_u8(v));
    }
    for (; i < n; ++i) out[i] = from[i];
  }
};

struct Pixels {
  using Convert = Widen;
  static constexpr std::size_t kFrom = 1, kTo = 2;
};

constexpr std::size_t kHeader = 64;

// A patch at one point: a multiple of 4 values, and a whole vector or more, as quads pay only from 8 on.
std::size_t quad_padded(const Shape& s) { return std::size_t(round_up(portable::quad_values(s), 4)); }

std::size_t packed_quads_bytes(const Shape& s) {
  return std::size_t(ceil_div(s.out_c, kPanel)) * kPoints * quad_padded(s) * kPanel * sizeof(std::int16_t);
}

void pack_quads(const Shape& s, const void* weights, std::uint8_t* packed) {
  auto* out = reinterpret_cast<std::int16_t*>(packed);
  const auto* from = static_cast<const std::int16_t*>(weights);
  const std::size_t point = quad_padded(s) * kPanel;
  std::memset(packed, 0, packed_quads_bytes(s));
  for (int c = 0; c < s.out_c; ++c, from += s.window_h * s.window_w * s.in_c) {
    std::int16_t* panel = out + std::size_t(c / kPanel) * kPoints * point + c % kPanel;
    portable::quad_weights(s, from,
                           [&](int i, int k, std::int16_t w) { panel[std::size_t(i) * point + k * kPanel] = w; });
  }
}

constexpr int kRowOfSums = (1 + kTile) * kQuad * kPanel;  // of a panel: the first quad may start before the first pixel

struct QuadScratch {
  Layout l;                               // of a patch at one point
  std::size_t joined, sums, rows, bytes;  // offsets; patches come first
  std::size_t joined_step, patches_step;  // bytes from point to point
};

QuadScratch quad_scratch(const Shape& s) {
  QuadScratch o{};
  o.l.bytes = quad_padded(s) * sizeof(std::int16_t);
  o.l.vectors = (o.l.bytes + kVector - 1) / kVector;
  o.l.joined = o.l.vectors * kVector + sizeof(portable::Column);  // gathering writes up to a column more
  o.patches_step = o.l.vectors * kTile * kVector;
  o.joined_step = o.l.joined * kTile;
  o.joined = kPoints * o.patches_step;
  o.sums = o.joined + kPoints * o.joined_step;
  o.rows = o.sums + std::size_t(ceil_div(s.out_c, kPanel)) * kRowOfSums * sizeof(std::int32_t);
  o.bytes = o.rows + portable::QuadRows::bytes(s);
  return o;
}

// One panel of Q quads, whose outputs start at `starts`: sums [pixel][channel].
template <int Q>
void dot_quads(const QuadScratch& o, const std::uint8_t* patches, const std::uint8_t*& w, const int* starts,
               std::int32_t* to) {
  const int steps = int(o.l.bytes / kVector), rest = int(o.l.bytes % kVector);
  std::uint32_t points[kPoints][Q][kPanel];
  for (int i = 0; i < kPoints; ++i, patches += o.patches_step) {
    int32x4_t a[kTile], b[kTile];
    Products<Q>::run(a, b, patches, w, steps, rest);
    Unroll<Q>::run([&](int q)
                       OVSW_INLINE_LAMBDA { store_pair(reinterpret_cast<std::int32_t*>(points[i][q]), a[q], b[q]); });
  }
  for (int q = 0; q < Q; ++q) {
    uint32x4_t a[kPoints], b[kPoints], y[kQuad], z[kQuad];
    const std::uint32_t* from = points[0][q];
    Unroll<kPoints>::run([&](int i) OVSW_INLINE_LAMBDA {
      a[i] = vld1q_u32(from + i * Q * kPanel);
      b[i] = vld1q_u32(from + i * Q * kPanel + 4);
    });
    portable::quad_outputs(a, y);
    portable::quad_outputs(b, z);
    std::int32_t* out = to + starts[q] * kPanel;
    Unroll<kQuad>::run([&](int i) OVSW_INLINE_LAMBDA {
      store_pair(out + i * kPanel, vreinterpretq_s32_u32(y[i]), vreinterpretq_s32_u32(z[i]));
    });
  }
}

// All panels of P pixels, from sums that are already computed: t.start has those of the first.
template <int P>
void tile_sums(const Tile& t) {
  const std::int32_t* from = t.start;
  tile<P>(t, [&](int32x4_t* a, int32x4_t* b) OVSW_INLINE_LAMBDA {
    const std::int32_t* at = from;
    Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { load_step(a[p], b[p], at); });
    from += kRowOfSums;
  });
}

constexpr TileFn kTilesOfSums[kTile] = OVSW_TILES(tile_sums);

void conv_quads(const KernelArgs& args, const std::uint8_t* weights, std::int64_t begin, std::int64_t end,
                void* scratch) {
  const Shape& s = args.shape;
  const QuadScratch o = quad_scratch(s);
  auto* const patches = static_cast<std::uint8_t*>(scratch);
  std::uint8_t* const joined = patches + o.joined;
  auto* const sums = reinterpret_cast<std::int32_t*>(patches + o.sums) + kQuad * kPanel;
  const int panels = int(ceil_div(args.last_channel - args.first_channel, kPanel));
  weights += std::size_t(args.first_channel) * kPoints * quad_padded(s) * sizeof(std::int16_t);
  portable::QuadStrips<kTile> strip(args, begin, end, patches + o.rows);
  Tile t{};
  init_tile(t, args);
  while (strip.next(joined, o.l.joined, o.joined_step)) {
    const std::uint8_t* w = weights;
    switch (strip.quads) {
#define OVSW_QUADS(Q)                                                                                                \
  case Q:                                                                                                            \
    for (int i = 0; i < kPoints; ++i) {                                                                              \
      interleave<Q, false>(o.l, joined + i * o.joined_step, patches + i * o.patches_step, nullptr);                  \
    }                                                                                                                \
    for (int i = 0; i < panels; ++i) dot_quads<Q>(o, patches, w, strip.starts, sums + std::int64_t(i) * kRowOfSums); \
    break;
      OVSW_SIZES(OVSW_QUADS)
#undef OVSW_QUADS
    }
    for_tiles(strip.first, strip.first + strip.pixels, [&](std::int64_t pixel, int n) OVSW_INLINE_LAMBDA {
      const std::int64_t at = pixel - strip.first;
      move_tile(t, pixel);
      for (int p = 0; p < n; ++p) t.base[p] = strip.base[at + p] + args.first_channel;
      t.start = sums + at * kPanel;
      clear_last_words(t, n);
      kTilesOfSums[n - 1](t);
    });
  }
}

}  // namespace

std::size_t ConvPixels::packed_bytes(const Shape& s) {
  const std::size_t words = packed16_bytes(s), quads = portable::quads_pay(s) ? packed_quads_bytes(s) : 0;
  return kHeader + (words < quads ? quads : words);
}

void ConvPixels::pack(const Shape& s, const void* weights, void* packed) {
  auto* to = static_cast<std::uint8_t*>(packed);
  std::memset(to, 0, kHeader);
  to[0] = portable::quads_pay(s) && portable::eight_bits(s, weights);
  if (to[0]) {
    pack_quads(s, weights, to + kHeader);
  } else {
    pack16(s, weights, to + kHeader);
  }
}

std::size_t ConvPixels::scratch_bytes(const Shape& s) {
  const std::size_t words = scratch_layout<Pixels>(s).bytes, quads = portable::quads_pay(s) ? quad_scratch(s).bytes : 0;
  return words < quads ? quads : words;
}

void ConvPixels::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const auto* weights = static_cast<const std::uint8_t*>(args.weights);
  if (weights[0]) {
    conv_quads(args, weights + kHeader, begin, end, scratch);
  } else {
    conv16<Pixels>(args, weights + kHeader, begin, end, scratch);
  }
}

}  // namespace ovsw::OVSW_ISA::neon
