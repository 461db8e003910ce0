// Multiplies patches of a map with weights, for the convolutions over pixels and over the 16-bit stream.
//
// Patches of 16-bit numbers, in pairs, times slabs of kSlab output channels; groups.h has the weights' layout, pairs
// over (window_h, window_w, in_c) as in the file, so that one VPMADDWD or VPDPWSSD does a pair for a register of
// channels. A patch is contiguous and its pairs run on from one kernel row to the next: 7x7x3 takes 74 pairs where
// separate rows would take 77. Sums are exact in 32 bits; VPMADDWD's one overflow, 2^31, is right modulo 2^32.
//
// Register plan: kPixels x kTileVectors sums, kTileVectors of weights, one group of a patch, and for AVX2 one product:
// 16 of 16 with AVX2, 29 of 32 with AVX-512.

#pragma once

#include "kernels/x86/epilogue.h"
#include "kernels/x86/groups.h"
#include "kernels/x86/padding.h"

namespace ovsw::OVSW_ISA::x86 {

constexpr int kSlab = 16;                     // channels
constexpr int kSlabVectors = kSlab / kLanes;  // registers of their sums
constexpr int kTileSlabs = kSlabVectors == 1 ? 4 : 1;
constexpr int kTileVectors = kTileSlabs * kSlabVectors;

constexpr int kPixels = 6;                   // of a tile
constexpr int kStrip = 48;                   // patches gathered at a time: a multiple of kPixels
constexpr int kGroup = 4;                    // bytes of a patch to a product and sum
constexpr int kPanelBytes = kGroup * kSlab;  // of a slab's weights for a group
constexpr int kSlack = 2 * sizeof(Vec);      // bytes that copying in vectors may touch past the end
constexpr std::int64_t kStripMax = 1 << 20;  // bytes of patches beyond which a strip is only kPixels

// The elements of patches and of the maps they come from, how a group is multiplied, and the final sum.
struct Words {
  using Value = std::int16_t;
  static OVSW_INLINE void add(Vec& sum, Vec x, Vec w) { add_products(sum, x, w); }
  static OVSW_INLINE Vec result(Vec sum) { return sum; }
};
struct Map : Words {
  using In = std::int16_t;
};
struct Pixels : Words {
  using In = std::uint8_t;
};
// Sizes in bytes for values of `size` bytes; room for both kinds is that of the wider one.
inline std::int64_t patch_values(const Shape& s) { return std::int64_t(s.window_h) * s.window_w * s.in_c; }
inline std::int64_t patch_groups(const Shape& s, int size) { return ceil_div(patch_values(s) * size, kGroup); }
inline std::int64_t pitch(const Shape& s, int size) { return std::int64_t(s.in_w + 2 * s.pad_w) * s.in_c * size; }
constexpr int kWide = sizeof(std::int16_t);
inline int strip_pixels(const Shape& s) { return patch_values(s) * kWide * kStrip <= kStripMax ? kStrip : kPixels; }

// A 1x1 patch of the stream lies in the map as it is; its last pair may reach into what follows, with weight 0.
template <typename F>
bool in_place(const Shape& s) {
  return sizeof(typename F::In) == kWide && s.window_h == 1 && s.window_w == 1 && s.pad_h == 0 && s.pad_w == 0;
}

// The input rows under output pixels [begin, end), as values of patches.
template <typename F>
void pad_values(const Shape& s, const void* in, std::int64_t begin, std::int64_t end, std::uint8_t* padded) {
  using In = typename F::In;
  using Value = typename F::Value;
  const std::int64_t row = std::int64_t(s.in_w) * s.in_c;
  pad_map(s, in, row * std::int64_t(sizeof(In)), begin, end, s.in_c * std::int64_t(sizeof(Value)), padded,
          [row](const std::uint8_t* from, std::uint8_t* to) OVSW_INLINE_LAMBDA {
            constexpr std::int64_t kChunk = sizeof(Vec) / sizeof(Value);
            const In* x = reinterpret_cast<const In*>(from);
            auto* y = reinterpret_cast<Value*>(to);
            for (std::int64_t i = 0; i < row; i += kChunk) store(y + i, converted<Value>(x + i));
          });
  // The last patches are copied beyond the end: zeros there, though they meet weights of 0.
  const std::int64_t rows = ((end - 1) / s.out_w - begin / s.out_w) * s.stride_h + s.window_h;
  std::memset(padded + rows * pitch(s, sizeof(Value)), 0, kSlack);
}

// A patch from the padded map, whose rows lie `step` apart and of which `row` bytes belong to it. Copied: bytes that
// are copied of a row, 0 for as many as it takes.
template <int Copied>
OVSW_INLINE void gather(int rows, const std::uint8_t* from, std::int64_t step, std::int64_t row, std::uint8_t* to) {
  constexpr int kUnit = Copied == 32 ? 32 : int(sizeof(Vec));
  for (int ky = 0; ky < rows; ++ky, from += step, to += row) {
    for (std::int64_t i = 0; i < (Copied ? Copied : row); i += kUnit) copy<kUnit>(to + i, from + i);
  }
}

struct Register {
  Vec v;
};

// P pixels x V registers of channels; sums [pixel][kTileVectors]. Not inlined, to have all registers.
template <typename F, int P, int V>
__attribute__((noinline)) void dot(const std::uint8_t* const* patches, const std::uint8_t* panel, std::int64_t groups,
                                   Vec* to) {
  using Row = List<Register, V>;
  const std::int64_t step = kSlabVectors == 1 ? groups * kPanelBytes : sizeof(Vec);  // to the next register's weights
  List<Row, P> sums;
  sums.each([](Row& row, int)
                OVSW_INLINE_LAMBDA { row.each([](Register& sum, int) OVSW_INLINE_LAMBDA { sum.v = zero(); }); });
  for (std::int64_t k = 0; k < groups; ++k, panel += kPanelBytes) {
    Row weights;
    weights.each([](Register& w, const std::uint8_t* at) OVSW_INLINE_LAMBDA { w.v = load(at); }, panel, step);
    sums.each([&](Row& row, int p) OVSW_INLINE_LAMBDA {
      const Vec x = all_groups(patches[p] + kGroup * k);
      row.each_with(weights, [x](Register& sum, const Register& w) OVSW_INLINE_LAMBDA { F::add(sum.v, x, w.v); });
    });
  }
  sums.each([to](Row& row, int p) OVSW_INLINE_LAMBDA {
    row.each([to, p](Register& sum, int i) OVSW_INLINE_LAMBDA { to[p * kTileVectors + i] = F::result(sum.v); });
  });
}

// P pixels x `slabs` slabs, at most Slabs.
template <typename F, int P, int Slabs = kTileSlabs>
OVSW_INLINE void dot_slabs(const std::uint8_t* const* patches, const std::uint8_t* panel, std::int64_t groups,
                           int slabs, Vec* to) {
  if constexpr (Slabs > 1) {
    if (slabs < Slabs) return dot_slabs<F, P, Slabs - 1>(patches, panel, groups, slabs, to);
  }
  dot<F, P, Slabs * kSlabVectors>(patches, panel, groups, to);
}

// A band, or all pixels if patches lie in the map as they are.
template <typename F, typename E>
void run_band(const KernelArgs& args, const std::uint8_t* weights, std::int64_t begin, std::int64_t end,
              void* scratch) {
  const Shape& s = args.shape;
  constexpr int kSize = sizeof(typename F::Value);
  const std::int64_t groups = patch_groups(s, kSize), step = pitch(s, kSize);
  const int strip = strip_pixels(s), row0 = int(begin / s.out_w);
  const auto t = make_target<E>(args);
  const auto* shift = args.constant<std::int32_t>(kShift);
  const int base_stride = padded_channels(s.out_c);
  const int first_slab = args.first_channel / kSlab, last_slab = int(ceil_div(args.last_channel, kSlab));
  auto* const room = static_cast<std::uint8_t*>(scratch);
  std::uint8_t* const map = room + strip * groups * kGroup + kSlack;
  // Where patches start, and how far it is from one to the next.
  const bool whole = in_place<F>(s);
  const std::uint8_t* start = map;
  const std::int64_t down = s.stride_h * step, right = std::int64_t(s.stride_w) * s.in_c * kSize;
  if (whole) {
    start = static_cast<const std::uint8_t*>(args.in.data) + row0 * down;
  } else {
    pad_values<F>(s, args.in.data, begin, end, map);
  }
  const std::int64_t row = std::int64_t(s.window_w) * s.in_c * kSize;
  int oy = row0, ox = int(begin % s.out_w);
  for (std::int64_t first = begin; first < end; first += strip) {
    const int pixels = end - first < strip ? int(end - first) : strip;
    const std::uint8_t* patches[kStrip];
    const std::int32_t* base[kStrip];
    std::uint8_t* to = room;
    for (int p = 0; p < pixels; ++p, to += groups * kGroup) {
      const std::uint8_t* from = start + (oy - row0) * down + ox * right;
      patches[p] = whole ? from : to;
      if (!whole) {
        if (row <= 32) {
          gather<32>(s.window_h, from, step, row, to);
        } else if (row <= 64) {
          gather<64>(s.window_h, from, step, row, to);
        } else if (row <= 128) {
          gather<128>(s.window_h, from, step, row, to);
        } else {
          gather<0>(s.window_h, from, step, row, to);
        }
      }
      base[p] = args.border.base + std::int64_t(args.border.row_class[oy] + args.border.col_class[ox]) * base_stride;
      if (++ox == s.out_w) {
        ox = 0;
        ++oy;
      }
    }
    for (int slab = first_slab; slab < last_slab; slab += kTileSlabs) {
      const std::uint8_t* panel = weights + slab * groups * kPanelBytes;
      const int slabs = last_slab - slab < kTileSlabs ? last_slab - slab : kTileSlabs;
      for (int p = 0; p < pixels; p += kPixels) {
        const int n = pixels - p < kPixels ? pixels - p : kPixels;
        Vec sums[kPixels * kTileVectors];
        if (n == kPixels) {
          dot_slabs<F, kPixels>(patches + p, panel, groups, slabs, sums);
        } else {
          for (int i = 0; i < n; ++i) dot_slabs<F, 1>(patches + p + i, panel, groups, slabs, sums + kTileVectors * i);
        }
        finish_sums<E>(t, shift, base + p, first + p, n, slab * kSlab, slabs, sums, kTileVectors);
      }
    }
  }
}

template <typename F>
void run_conv(const KernelArgs& args, const void* weights, std::int64_t begin, std::int64_t end, void* scratch) {
  if (begin >= end) return;
  const auto* from = static_cast<const std::uint8_t*>(weights);
  with_parts(args, [&](auto parts) {
    using E = decltype(parts);
    const Shape& s = args.shape;
    if (in_place<F>(s)) return run_band<F, E>(args, from, begin, end, scratch);
    for_bands(s, pitch(s, kWide), begin, end, [&](std::int64_t first, std::int64_t last) OVSW_INLINE_LAMBDA {
      run_band<F, E>(args, from, first, last, scratch);
    });
  });
}

// Weights for pixels are of one of two kinds, after a header that says which: Words for any weights, or a special kind.
constexpr std::size_t kHeader = 64;

static inline std::size_t packed_words_bytes(const Shape& s) {
  return packed_groups_bytes<std::int16_t>(s.out_c, patch_values(s), kSlab);
}

static inline void pack_words(const Shape& s, const void* weights, void* packed) {
  pack_groups<std::int16_t>(weights, s.out_c, patch_values(s), kSlab, 1, packed);
}

static inline std::size_t words_scratch_bytes(const Shape& s) {
  const std::int64_t map = pitch(s, kWide) * band_rows(s, pitch(s, kWide)) + kSlack;
  return std::size_t(strip_pixels(s) * patch_groups(s, kWide) * kGroup + kSlack + map);
}

}  // namespace ovsw::OVSW_ISA::x86
