// The convolution over pixels. Where all weights have 8 bits and it is faster, four outputs of a row are computed
// together with half the products (kernels/portable/toom_cook.h): at each of the points kPixels quads are multiplied as
// pixels are otherwise, and their sums transformed back. A header before the weights says which of the two it is.
//     packed[point][slab][pair of values][channel][2]
//
// (VPMADDUBSW on bytes saturates if two products overflow 16 bits; avoiding that takes as many instructions as
// VPMADDWD.)

#include "kernels/portable/toom_cook.h"
#include "kernels/x86/conv.h"
#include "kernels/x86_avx2/kernels.h"

namespace ovsw::x86_avx2 {
namespace {

using namespace x86;
using portable::kPoints;
using portable::kQuad;

constexpr int kQuads = 24;  // gathered at a time: a multiple of kPixels

typedef std::uint32_t Sums __attribute__((vector_size(sizeof(Vec))));

std::int64_t quad_groups(const Shape& s) { return ceil_div(portable::quad_values(s) * kWide, kGroup); }

// Of one point: its weights, a patch (gathering writes up to a column more), and the patches of all quads.
std::int64_t point_weights(const Shape& s) { return ceil_div(s.out_c, kSlab) * quad_groups(s) * kPanelBytes; }
std::int64_t point_patch(const Shape& s) { return quad_groups(s) * kGroup + std::int64_t(sizeof(portable::Column)); }
std::int64_t point_patches(const Shape& s) { return kQuads * point_patch(s); }

void pack_quads(const Shape& s, const void* weights, std::uint8_t* packed) {
  std::memset(packed, 0, std::size_t(kPoints * point_weights(s)));
  const auto* from = static_cast<const std::int16_t*>(weights);
  for (int c = 0; c < s.out_c; ++c, from += patch_values(s)) {
    std::uint8_t* panel = packed + c / kSlab * quad_groups(s) * kPanelBytes + c % kSlab * kGroup;
    portable::quad_weights(s, from, [&](int point, int k, std::int16_t w) {
      std::memcpy(panel + point * point_weights(s) + k / 2 * kPanelBytes + k % 2 * kWide, &w, sizeof w);
    });
  }
}

// `quads` quads, at most kPixels, x 1 slab: sums [pixel][kTileVectors] of all their outputs. `starts` has where the
// outputs of each start.
void dot_quads(const Shape& s, const std::uint8_t* patches, const std::uint8_t* panel, int quads, const int* starts,
               Vec* to) {
  Vec points[kPoints][kPixels * kTileVectors];
  const std::int64_t groups = quad_groups(s);
  for (int i = 0; i < kPoints; ++i, panel += point_weights(s), patches += point_patches(s)) {
    const std::uint8_t* at[kPixels];
    for (int q = 0; q < quads; ++q) at[q] = patches + q * point_patch(s);
    if (quads == kPixels) {
      dot<Pixels, kPixels, kTileVectors>(at, panel, groups, points[i]);
    } else {
      for (int q = 0; q < quads; ++q) dot<Pixels, 1, kTileVectors>(at + q, panel, groups, points[i] + q * kTileVectors);
    }
  }
  for (int q = 0; q < quads; ++q) {
    for (int v = 0; v < kTileVectors; ++v) {
      Sums m[kPoints], y[kQuad];
      for (int i = 0; i < kPoints; ++i) m[i] = Sums(points[i][q * kTileVectors + v]);
      portable::quad_outputs(m, y);
      for (int i = 0; i < kQuad; ++i) to[(starts[q] + i) * kTileVectors + v] = Vec(y[i]);
    }
  }
}

template <typename E>
void run_quads(const KernelArgs& args, const std::uint8_t* weights, std::int64_t begin, std::int64_t end,
               void* scratch) {
  const Shape& s = args.shape;
  const auto t = make_target<E>(args);
  const auto* shift = args.constant<std::int32_t>(kShift);
  const int first_slab = args.first_channel / kSlab, last_slab = int(ceil_div(args.last_channel, kSlab));
  auto* const room = static_cast<std::uint8_t*>(scratch);
  portable::QuadStrips<kQuads> strip(args, begin, end, room + kPoints * point_patches(s));
  while (strip.next(room, std::size_t(point_patch(s)), std::size_t(point_patches(s)))) {
    for (int slab = first_slab; slab < last_slab; ++slab) {
      const std::uint8_t* panel = weights + slab * quad_groups(s) * kPanelBytes;
      for (int q = 0; q < strip.quads; q += kPixels) {
        const int n = strip.quads - q < kPixels ? strip.quads - q : kPixels;
        const int* starts = strip.starts + q;
        const int start = starts[0] < 0 ? 0 : starts[0];
        Vec room_for_sums[(1 + kPixels) * kQuad * kTileVectors], *sums = room_for_sums + kQuad * kTileVectors;
        dot_quads(s, room + q * point_patch(s), panel, n, starts, sums - start * kTileVectors);
        finish_sums<E>(t, shift, strip.base + start, strip.first + start, starts[n] - start, slab * kSlab, 1, sums,
                       kTileVectors);
      }
    }
  }
}

}  // namespace

std::size_t ConvPixels::packed_bytes(const Shape& s) {
  const std::size_t words = packed_words_bytes(s),
                    quads = portable::quads_pay(s) ? std::size_t(kPoints * point_weights(s)) : 0;
  return kHeader + (words < quads ? quads : words);
}

void ConvPixels::pack(const Shape& s, const void* weights, void* packed) {
  auto* to = static_cast<std::uint8_t*>(packed);
  std::memset(to, 0, kHeader);
  to[0] = portable::quads_pay(s) && portable::eight_bits(s, weights);
  if (to[0]) {
    pack_quads(s, weights, to + kHeader);
  } else {
    pack_words(s, weights, to + kHeader);
  }
}

std::size_t ConvPixels::scratch_bytes(const Shape& s) {
  const std::size_t words = words_scratch_bytes(s);
  if (!portable::quads_pay(s)) return words;
  const std::size_t quads = std::size_t(kPoints * point_patches(s)) + portable::QuadRows::bytes(s);
  return words < quads ? quads : words;
}

void ConvPixels::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const auto* weights = static_cast<const std::uint8_t*>(args.weights);
  if (weights[0] && begin < end) {
    with_parts(args, [&](auto parts) { run_quads<decltype(parts)>(args, weights + kHeader, begin, end, scratch); });
  } else {
    run_conv<Pixels>(args, weights + kHeader, begin, end, scratch);
  }
}

}  // namespace ovsw::x86_avx2
