// The convolution over the 16-bit stream with dot products. Where all weights have 8 bits, a value of the stream is two
// signed bytes, x = 256 * h + l + 128, so that
//     sum of w * x = 256 * sum of w * h + sum of w * l + 128 * sum of w
// modulo 2^32: two passes of SDOT over the same weights, 8 products per instruction instead of 4. The last sum depends
// on the channel only and is part of its base. This is done only without padding, where every pixel has the same base.
//     packed[panel][4 values of the patch][channel][4 bytes], after a header that says so and the channels' part of the
//     base; else as in arm_neon/conv.h, after the header
// Patches are gathered as there, then split into planes: [plane][16 values][pixel]

#include "kernels/arm_neon_dot/dots.h"
#include "kernels/arm_neon_dot/kernels.h"

namespace ovsw::arm_neon_dot {
namespace {

using namespace neon;

bool may_split(const Shape& s) { return s.pad_h == 0 && s.pad_w == 0; }

bool are_bytes(const std::int16_t* weights, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (weights[i] < -128 || weights[i] > 127) return false;
  }
  return true;
}

std::size_t values_of(const Shape& s) { return std::size_t(s.window_h) * s.window_w * s.in_c; }

// Vectors of bytes of a plane.
std::size_t steps_of(const Shape& s) { return std::size_t(ceil_div(std::int64_t(values_of(s)), kVector)); }

std::size_t base_bytes(const Shape& s) { return std::size_t(padded_channels(s.out_c)) * sizeof(std::int32_t); }

std::size_t panel_bytes(const Shape& s) { return steps_of(s) * kVector * kPanel; }

void pack_split(const Shape& s, const void* weights, std::uint8_t* packed) {
  const auto* from = static_cast<const std::int16_t*>(weights);
  std::memset(packed, 0, base_bytes(s) + std::size_t(ceil_div(s.out_c, kPanel)) * panel_bytes(s));
  for (int c = 0; c < s.out_c; ++c) {
    std::uint8_t* panel = packed + base_bytes(s) + std::size_t(c / kPanel) * panel_bytes(s) + c % kPanel * kGroup;
    std::uint32_t sum = 0;
    for (std::size_t k = 0; k < values_of(s); ++k) {
      const std::int16_t w = *from++;
      panel[k / kGroup * kGroup * kPanel + k % kGroup] = std::uint8_t(w);
      sum += 128 * std::uint32_t(w);
    }
    std::memcpy(packed + std::size_t(c) * sizeof sum, &sum, sizeof sum);
  }
}

#define OVSW_ZERO(p, unused) \
  "movi %[a" #p              \
  "].4s, #0\n\t"             \
  "movi %[b" #p "].4s, #0\n\t"

template <int P>
struct Planes;

#define OVSW_PLANE_SUMS(P)                                                                                              \
  template <>                                                                                                           \
  struct Planes<P> {                                                                                                    \
    static OVSW_INLINE void run(int32x4_t* a, int32x4_t* b, const Tile& t, const std::uint8_t*& w) {                    \
      const void* x = t.patches;                                                                                        \
      const std::uint8_t* const weights = w;                                                                            \
      int n = t.steps;                                                                                                  \
      __asm__ volatile(OVSW_EACH##P(OVSW_ZERO, ) OVSW_LOOP(1, OVSW_GROUPS4(P, "sdot")) OVSW_EACH##P(OVSW_TIMES256, )  \
                       "mov %[w], %[weights]\n\t" "mov %w[n], %w[steps]\n\t" OVSW_LOOP(2, OVSW_GROUPS4(P, "sdot")) \
                       : OVSW_SUMS16, [x] "+&r"(x), [w] "+&r"(w), [n] "+&r"(n)                                        \
                       : [weights] "r"(weights), [steps] "r"(t.steps)                                                 \
                       : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9"); \
    }                                                                                                                   \
  };
OVSW_SIZES(OVSW_PLANE_SUMS)

template <int P>
void tile_planes(const Tile& t) {
  const std::uint8_t* w = t.weights;
  tile<P>(t, [&](int32x4_t* a, int32x4_t* b) OVSW_INLINE_LAMBDA { Planes<P>::run(a, b, t, w); });
}

constexpr TileFn kTilesOfPlanes[kTile] = OVSW_TILES(tile_planes);

// The patches of a tile of `pixels`, `vectors` of 8 values each, as bytes h and l.
void take_apart(const std::uint8_t* patches, std::size_t vectors, int pixels, std::uint8_t* planes) {
  const std::size_t row = std::size_t(pixels) * kVector, plane = (vectors + 1) / 2 * row;
  for (std::size_t v = 0; v < vectors; v += 2, patches += 2 * row, planes += row) {
    for (std::size_t at = 0; at < row; at += kVector) {
      const uint8x16_t a = vld1q_u8(patches + at);
      const uint8x16_t b = v + 1 < vectors ? vld1q_u8(patches + row + at) : vdupq_n_u8(0);
      vst1q_u8(planes + at, vuzp2q_u8(a, b));
      vst1q_u8(planes + plane + at, veorq_u8(vuzp1q_u8(a, b), vdupq_n_u8(0x80)));
    }
  }
}

struct SplitScratch {
  std::size_t base, planes, bytes;  // offsets; what gathering needs comes first
};

SplitScratch split_scratch(const Shape& s) {
  SplitScratch o{};
  o.base = std::size_t(round_up(std::int64_t(scratch_layout<Map>(s).bytes), 64));
  o.planes = o.base + base_bytes(s);
  o.bytes = o.planes + 2 * steps_of(s) * kTile * kVector;
  return o;
}

void conv_split(const KernelArgs& args, const std::uint8_t* packed, std::int64_t begin, std::int64_t end,
                void* scratch) {
  const Shape& s = args.shape;
  const SplitScratch o = split_scratch(s);
  auto* const memory = static_cast<std::uint8_t*>(scratch);
  auto* const base = reinterpret_cast<std::uint32_t*>(memory + o.base);
  std::uint8_t* const planes = memory + o.planes;
  std::memcpy(base, packed, base_bytes(s));
  for (int c = 0; c < s.out_c; ++c) base[c] += std::uint32_t(args.border.base[c]);
  KernelArgs own = args;
  own.border.base = reinterpret_cast<const std::int32_t*>(base);
  const std::size_t vectors = layout(s, Map::kTo).vectors;
  Tile t{};
  t.weights = packed + base_bytes(s) + std::size_t(args.first_channel / kPanel) * panel_bytes(s);
  t.steps = int(steps_of(s));
  conv<Map, false>(own, begin, end, scratch, t, nullptr, [&](int pixels) OVSW_INLINE_LAMBDA {
    take_apart(memory, vectors, pixels, planes);
    t.patches = planes;
    kTilesOfPlanes[pixels - 1](t);
  });
}

}  // namespace

std::size_t ConvDot::packed_bytes(const Shape& s) {
  const std::size_t words = packed16_bytes(s);
  const std::size_t bytes = base_bytes(s) + std::size_t(ceil_div(s.out_c, kPanel)) * panel_bytes(s);
  return kHeader + (may_split(s) && words < bytes ? bytes : words);
}

void ConvDot::pack(const Shape& s, const void* weights, void* packed) {
  auto* to = static_cast<std::uint8_t*>(packed);
  std::memset(to, 0, kHeader);
  to[0] = may_split(s) && are_bytes(static_cast<const std::int16_t*>(weights), values_of(s) * std::size_t(s.out_c));
  if (to[0]) {
    pack_split(s, weights, to + kHeader);
  } else {
    pack16(s, weights, to + kHeader);
  }
}

std::size_t ConvDot::scratch_bytes(const Shape& s) {
  return may_split(s) ? split_scratch(s).bytes : scratch_layout<Map>(s).bytes;
}

void ConvDot::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const auto* weights = static_cast<const std::uint8_t*>(args.weights);
  if (weights[0]) {
    conv_split(args, weights + kHeader, begin, end, scratch);
  } else {
    conv16<Map>(args, weights + kHeader, begin, end, scratch);
  }
}

}  // namespace ovsw::arm_neon_dot
