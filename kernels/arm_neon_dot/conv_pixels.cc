// The convolution over pixels with dot products: UDOT by lane, 16 products of bytes per instruction; the rest is as in
// conv.h. A weight w is two unsigned bytes, w + 32768 = 256 * h + l, so with n the sum of a patch's pixels
//     sum of w * v = 256 * (sum of h * v - 128 * n) + sum of l * v
// modulo 2^32; the first pass over the patch starts from -128 * n and the second from 256 times its result. 8-bit
// weights are multiples of 256, all their l are 0: one pass is enough. Zeros outside the image add nothing to either
// sum.
//     packed[panel][pass][4 bytes of the patch][channel][4 bytes], after a header with the number of passes

#include "kernels/arm_neon_dot/dots.h"
#include "kernels/arm_neon_dot/kernels.h"
#include "kernels/portable/eight_bits.h"

namespace ovsw::arm_neon_dot {
namespace {

using namespace neon;

struct Pixels {
  using Convert = Copy;
  static constexpr std::size_t kFrom = 1, kTo = 1;
};

// n vectors, which may be none, and `rest` groups of 4 bytes.
#define OVSW_PASS(P) \
  "mov %[x], %[patches]\n\t" "mov %w[n], %w[steps]\n\t" "cbz %w[n], 2f\n\t" OVSW_LOOP(1, OVSW_GROUPS4(P, "udot"))  \
  "2:\n\t" "cbz %w[rest], 3f\n\t" OVSW_PIXELS##P OVSW_GROUP(P, 0, "udot")                                          \
  "cmp %w[rest], #2\n\t" "b.lt 3f\n\t" OVSW_GROUP(P, 1, "udot") "b.eq 3f\n\t" OVSW_GROUP(P, 2, "udot") "3:\n\t"
#define OVSW_START(p, unused) \
  "ld1r {%[a" #p              \
  "].4s}, [%[x]], #4\n\t"     \
  "mov %[b" #p "].16b, %[a" #p "].16b\n\t"
template <int P>
struct Dots;

#define OVSW_DOT_SUMS(P)                                                                                               \
  template <>                                                                                                          \
  struct Dots<P> {                                                                                                     \
    static OVSW_INLINE void run(int32x4_t* a, int32x4_t* b, const Tile& t, const std::uint8_t*& w) {                   \
      const void* x = t.start;                                                                                         \
      int n;                                                                                                           \
      __asm__ volatile(OVSW_EACH##P(OVSW_START, ) OVSW_PASS(P) OVSW_EACH##P(OVSW_TIMES256, )                         \
                       "cmp %w[passes], #1\n\t" "b.eq 4f\n\t" OVSW_PASS(P) "4:\n\t"                                \
                       : OVSW_SUMS16, [x] "+&r"(x), [w] "+&r"(w), [n] "=&r"(n)                                         \
                       : [patches] "r"(t.patches), [steps] "r"(t.steps), [rest] "r"(t.rest), [passes] "r"(t.passes)  \
                       : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9"); \
    }                                                                                                                  \
  };
OVSW_SIZES(OVSW_DOT_SUMS)

template <int P>
void tile_dot(const Tile& t) {
  const std::uint8_t* w = t.weights;
  tile<P>(t, [&](int32x4_t* a, int32x4_t* b) OVSW_INLINE_LAMBDA { Dots<P>::run(a, b, t, w); });
}

constexpr TileFn kTilesDot[kTile] = OVSW_TILES(tile_dot);

std::size_t groups_of(const Shape& s) {
  return round_up(std::size_t(s.window_h) * s.window_w * s.in_c, kGroup) / kGroup;
}

// For two passes; if one is enough, half of it is unused.
std::size_t packed_dot_bytes(const Shape& s) {
  return kHeader + 2 * std::size_t(ceil_div(s.out_c, kPanel)) * groups_of(s) * kGroup * kPanel;
}

void pack_dot(const Shape& s, const void* from, void* packed) {
  const auto* weights = static_cast<const std::int16_t*>(from);
  const std::size_t values = std::size_t(s.window_h) * s.window_w * s.in_c, groups = groups_of(s);
  auto* out = static_cast<std::uint8_t*>(packed);
  std::memset(out, 0, packed_dot_bytes(s));
  const std::size_t passes = portable::eight_bits(s, from) ? 1 : 2;
  out[0] = std::uint8_t(passes);
  out += kHeader;
  for (int c = 0; c < s.out_c; ++c) {
    std::uint8_t* panel = out + std::size_t(c / kPanel) * passes * groups * kGroup * kPanel + c % kPanel * kGroup;
    for (std::size_t k = 0; k < values; ++k) {
      std::uint8_t* to = panel + k / kGroup * kGroup * kPanel + k % kGroup;
      const int w = *weights++;
      to[0] = std::uint8_t((w + 32768) >> 8);
      if (passes == 2) to[groups * kGroup * kPanel] = std::uint8_t(w + 32768);
    }
  }
}

void conv_dot(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const std::size_t groups = groups_of(args.shape);
  const auto* weights = static_cast<const std::uint8_t*>(args.weights);
  std::int32_t start[kTile];
  Tile t{};
  t.passes = weights[0];
  t.weights = weights + kHeader + std::size_t(args.first_channel * t.passes) * groups * kGroup;
  t.start = start;
  t.steps = int(groups * kGroup / kVector);
  t.rest = int(groups % (kVector / kGroup));
  conv<Pixels, true>(args, begin, end, scratch, t, start,
                     [&](int pixels) OVSW_INLINE_LAMBDA { kTilesDot[pixels - 1](t); });
}

}  // namespace

std::size_t ConvPixelsDot::packed_bytes(const Shape& s) { return packed_dot_bytes(s); }
void ConvPixelsDot::pack(const Shape& s, const void* weights, void* packed) { pack_dot(s, weights, packed); }
std::size_t ConvPixelsDot::scratch_bytes(const Shape& s) { return scratch_layout<Pixels>(s).bytes; }
void ConvPixelsDot::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  conv_dot(args, begin, end, scratch);
}

}  // namespace ovsw::arm_neon_dot
