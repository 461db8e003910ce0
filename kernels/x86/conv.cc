// The convolutions over pixels and over the 16-bit stream.
//
// Patches of 16-bit numbers, in pairs, times slabs of kSlab output channels; pairs.h has the weights' layout, pairs
// over (window_h, window_w, in_c) as in the file, so that one VPMADDWD or VPDPWSSD does a pair for a register of
// channels. A patch is contiguous and its pairs run on from one kernel row to the next: 7x7x3 takes 74 pairs where
// separate rows would take 77. Sums are exact in 32 bits; VPMADDWD's one overflow, 2^31, is right modulo 2^32.
//
// Register plan: kPixels x kTileVectors sums, kTileVectors of weights, one pair, and for AVX2 one product: 16 of 16
// with AVX2, 29 of 32 with AVX-512.

#include "kernels/x86/epilogue.h"
#include "kernels/x86/kernels.h"
#include "kernels/x86/padding.h"
#include "kernels/x86/pairs.h"

namespace ovsw::OVSW_ISA::x86 {
namespace {

constexpr int kSlab = 16;                     // channels
constexpr int kSlabVectors = kSlab / kLanes;  // registers of their sums
constexpr int kTileSlabs = kSlabVectors == 1 ? 4 : 1;
constexpr int kTileVectors = kTileSlabs * kSlabVectors;

constexpr int kPixels = 6;                   // of a tile
constexpr int kStrip = 48;                   // patches gathered at a time: a multiple of kPixels
constexpr int kChunk = 2 * kLanes;           // 16-bit numbers of a register
constexpr int kSlack = 2 * kChunk;           // elements that copying in vectors may touch past the end
constexpr std::int64_t kStripMax = 1 << 20;  // bytes of patches beyond which a strip is only kPixels

std::int64_t patch_size(const Shape& s) { return std::int64_t(s.window_h) * s.window_w * s.in_c; }
std::int64_t patch_pairs(const Shape& s) { return ceil_div(patch_size(s), 2); }
std::int64_t pitch(const Shape& s) { return std::int64_t(s.in_w + 2 * s.pad_w) * s.in_c; }  // of the padded map
std::int64_t pitch_bytes(const Shape& s) { return pitch(s) * std::int64_t(sizeof(std::int16_t)); }
int strip_pixels(const Shape& s) { return patch_size(s) * 2 * kStrip <= kStripMax ? kStrip : kPixels; }

// A 1x1 patch of the stream lies in the map as it is; its last pair may reach into what follows, with weight 0.
template <typename In>
bool in_place(const Shape& s) {
  return sizeof(In) == sizeof(std::int16_t) && s.window_h == 1 && s.window_w == 1 && s.pad_h == 0 && s.pad_w == 0;
}

// The input rows under output pixels [begin, end) in 16 bits.
template <typename In>
void pad_values(const Shape& s, const void* in, std::int64_t begin, std::int64_t end, std::int16_t* padded) {
  const std::int64_t row = std::int64_t(s.in_w) * s.in_c;
  pad_map(s, in, row * std::int64_t(sizeof(In)), begin, end, s.in_c * std::int64_t(sizeof *padded), padded,
          [row](const std::uint8_t* from, std::uint8_t* to) OVSW_INLINE_LAMBDA {
            const In* x = reinterpret_cast<const In*>(from);
            auto* y = reinterpret_cast<std::int16_t*>(to);
            for (std::int64_t i = 0; i < row; i += kChunk) store(y + i, widen16(x + i));
          });
  // The last patches are copied beyond the end: zeros there, though they meet weights of 0.
  const std::int64_t rows = ((end - 1) / s.out_w - begin / s.out_w) * s.stride_h + s.window_h;
  std::memset(padded + rows * pitch(s), 0, kSlack * sizeof *padded);
}

// A patch from the padded map, whose rows lie `step` apart. Chunks: vectors to a kernel row, 0 if more than two.
template <int Chunks>
OVSW_INLINE void gather(const Shape& s, const std::int16_t* from, std::int64_t step, std::int16_t* to) {
  const std::int64_t row = std::int64_t(s.window_w) * s.in_c;
  const std::int64_t copied = Chunks ? Chunks * kChunk : row;
  for (int ky = 0; ky < s.window_h; ++ky, from += step, to += row) {
    for (std::int64_t i = 0; i < copied; i += kChunk) store(to + i, load(from + i));
  }
}

struct Register {
  Vec v;
};

// P pixels x V registers of channels; sums [pixel][kTileVectors]. Not inlined, to have all registers.
template <int P, int V>
__attribute__((noinline)) void dot(const std::int16_t* const* patches, const std::int16_t* panel, std::int64_t pairs,
                                   Vec* to) {
  using Row = List<Register, V>;
  const std::int64_t step = kSlabVectors == 1 ? pairs * 2 * kSlab : kChunk;  // from one register's weights to the next
  List<Row, P> sums;
  sums.each([](Row& row, int)
                OVSW_INLINE_LAMBDA { row.each([](Register& sum, int) OVSW_INLINE_LAMBDA { sum.v = zero(); }); });
  for (std::int64_t k = 0; k < pairs; ++k, panel += 2 * kSlab) {
    Row weights;
    weights.each([](Register& w, const std::int16_t* at) OVSW_INLINE_LAMBDA { w.v = load(at); }, panel, step);
    sums.each([&](Row& row, int p) OVSW_INLINE_LAMBDA {
      const Vec x = all_pairs(patches[p] + 2 * k);
      row.each_with(weights, [x](Register& sum, const Register& w) OVSW_INLINE_LAMBDA { add_products(sum.v, x, w.v); });
    });
  }
  sums.each([to](Row& row, int p) OVSW_INLINE_LAMBDA {
    row.each([to, p](Register& sum, int i) OVSW_INLINE_LAMBDA { to[p * kTileVectors + i] = sum.v; });
  });
}

// P pixels x `slabs` slabs, at most Slabs.
template <int P, int Slabs = kTileSlabs>
OVSW_INLINE void dot_slabs(const std::int16_t* const* patches, const std::int16_t* panel, std::int64_t pairs, int slabs,
                           Vec* to) {
  if constexpr (Slabs > 1) {
    if (slabs < Slabs) return dot_slabs<P, Slabs - 1>(patches, panel, pairs, slabs, to);
  }
  dot<P, Slabs * kSlabVectors>(patches, panel, pairs, to);
}

// A band, or all pixels if patches lie in the map as they are.
template <typename In, typename E>
void run_band(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const auto* weights = static_cast<const std::int16_t*>(args.weights);
  const std::int64_t pairs = patch_pairs(s), step = pitch(s);
  const int strip = strip_pixels(s), row0 = int(begin / s.out_w);
  const Target t = make_target(args);
  const auto* shift = args.constant<std::int32_t>(kShift);
  const int base_stride = padded_channels(s.out_c);
  const int first_slab = args.first_channel / kSlab, last_slab = int(ceil_div(args.last_channel, kSlab));
  auto* const room = static_cast<std::int16_t*>(scratch);
  auto* const map = room + strip * 2 * pairs + kSlack;
  // Where patches start, and how far it is from one to the next.
  const bool whole = in_place<In>(s);
  const std::int16_t* start = map;
  const std::int64_t down = s.stride_h * step, right = std::int64_t(s.stride_w) * s.in_c;
  if (whole) {
    start = static_cast<const std::int16_t*>(args.in.data) + row0 * down;
  } else {
    pad_values<In>(s, args.in.data, begin, end, map);
  }
  const std::int64_t row = std::int64_t(s.window_w) * s.in_c;
  int oy = row0, ox = int(begin % s.out_w);
  for (std::int64_t first = begin; first < end; first += strip) {
    const int pixels = end - first < strip ? int(end - first) : strip;
    const std::int16_t* patches[kStrip];
    const std::int32_t* base[kStrip];
    std::int16_t* to = room;
    for (int p = 0; p < pixels; ++p, to += 2 * pairs) {
      const std::int16_t* from = start + (oy - row0) * down + ox * right;
      patches[p] = whole ? from : to;
      if (!whole) {
        if (row <= kChunk) {
          gather<1>(s, from, step, to);
        } else if (row <= 2 * kChunk) {
          gather<2>(s, from, step, to);
        } else {
          gather<0>(s, from, step, to);
        }
      }
      base[p] = args.border.base + std::int64_t(args.border.row_class[oy] + args.border.col_class[ox]) * base_stride;
      if (++ox == s.out_w) {
        ox = 0;
        ++oy;
      }
    }
    for (int slab = first_slab; slab < last_slab; slab += kTileSlabs) {
      const std::int16_t* panel = weights + slab * pairs * 2 * kSlab;
      const int slabs = last_slab - slab < kTileSlabs ? last_slab - slab : kTileSlabs;
      for (int p = 0; p < pixels; p += kPixels) {
        const int n = pixels - p < kPixels ? pixels - p : kPixels;
        Vec sums[kPixels * kTileVectors];
        if (n == kPixels) {
          dot_slabs<kPixels>(patches + p, panel, pairs, slabs, sums);
        } else {
          for (int i = 0; i < n; ++i) dot_slabs<1>(patches + p + i, panel, pairs, slabs, sums + kTileVectors * i);
        }
        finish_sums<E>(t, shift, base + p, first + p, n, slab * kSlab, slabs, sums, kTileVectors);
      }
    }
  }
}

template <typename In, typename E>
void run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  if (in_place<In>(s)) return run_band<In, E>(args, begin, end, scratch);
  for_bands(s, pitch_bytes(s), begin, end, [&](std::int64_t first, std::int64_t last) OVSW_INLINE_LAMBDA {
    run_band<In, E>(args, first, last, scratch);
  });
}

}  // namespace

std::size_t Conv::packed_bytes(const Shape& s) { return packed_pairs_bytes(s.out_c, patch_size(s), kSlab); }

void Conv::pack(const Shape& s, const void* weights, void* packed) {
  pack_pairs(weights, s.out_c, patch_size(s), kSlab, packed);
}

std::size_t Conv::scratch_bytes(const Shape& s) {
  const std::int64_t map = pitch(s) * band_rows(s, pitch_bytes(s)) + kSlack;
  return std::size_t(strip_pixels(s) * 2 * patch_pairs(s) + kSlack + map) * sizeof(std::int16_t);
}

void Conv::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (begin >= end) return;
  with_parts(args, [&](auto parts) {
    if (args.in.kind == Element::kU8) {
      x86::run<std::uint8_t, decltype(parts)>(args, begin, end, scratch);
    } else {
      x86::run<std::int16_t, decltype(parts)>(args, begin, end, scratch);
    }
  });
}

}  // namespace ovsw::OVSW_ISA::x86
