// The convolutions over pixels and over the 16-bit stream.
//
// Patches of 16-bit numbers, in pairs, times slabs of 16 output channels:
//     packed[slab][pair][lane][2],  pairs over (kernel_h, kernel_w, in_c) as in the file, padded with a zero weight
// so that one VPDPWSSD does a pair for 16 channels and adds it up. A patch is contiguous and its pairs run on from one
// kernel row to the next: 7x7x3 takes 74 pairs where separate rows would take 77. Sums are exact in 32 bits.
//
// Register plan: kPixels x 4 sums, 4 of weights, one pair: 29.

#include "kernels/portable/integer.h"
#include "kernels/x86_avx512/epilogue.h"

namespace ovsw::x86_avx512 {

const int kPixelCentre = 0;

namespace {

constexpr int kPixels = 6;                   // of a tile
constexpr int kSlab = 16;                    // channels to a register
constexpr int kStrip = 48;                   // patches gathered at a time: a multiple of kPixels
constexpr int kSlack = 64;                   // elements that copying in vectors may touch past the end
constexpr std::int64_t kStripMax = 1 << 20;  // bytes of patches beyond which a strip is only kPixels

std::int64_t patch_size(const Shape& s) { return std::int64_t(s.kernel_h) * s.kernel_w * s.in_c; }
std::int64_t patch_pairs(const Shape& s) { return ceil_div(patch_size(s), 2); }
std::int64_t pitch(const Shape& s) { return std::int64_t(s.in_w + 2 * s.pad_w) * s.in_c; }  // of the padded map
int strip_pixels(const Shape& s) { return patch_size(s) * 2 * kStrip <= kStripMax ? kStrip : kPixels; }

// A 1x1 patch of the stream lies in the map as it is; its last pair may reach into what follows, with weight 0.
template <typename In>
bool in_place(const Shape& s) {
  return sizeof(In) == sizeof(std::int16_t) && s.kernel_h == 1 && s.kernel_w == 1 && s.pad_h == 0 && s.pad_w == 0;
}

OVSW_AVX512_INLINE __m512i load32(const std::uint8_t* p) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
OVSW_AVX512_INLINE __m512i load32(const std::int16_t* p) { return load(p); }

// The input rows under output pixels [begin, end) in 16 bits, with zeros around, so that no later step sees a border.
template <typename In>
void pad_map(const Shape& s, const void* in, std::int64_t begin, std::int64_t end, std::int16_t* to) {
  const int y0 = int(begin / s.out_w) * s.stride_h - s.pad_h;
  const int y1 = int((end - 1) / s.out_w) * s.stride_h - s.pad_h + s.kernel_h;
  const std::int64_t side = std::int64_t(s.pad_w) * s.in_c, row = std::int64_t(s.in_w) * s.in_c;
  for (int y = y0; y < y1; ++y, to += pitch(s)) {
    if (y < 0 || y >= s.in_h) {
      std::memset(to, 0, std::size_t(pitch(s)) * sizeof *to);
      continue;
    }
    const In* from = static_cast<const In*>(in) + y * row;
    std::memset(to, 0, std::size_t(side) * sizeof *to);
    for (std::int64_t i = 0; i < row; i += 32) store(to + side + i, load32(from + i));
    std::memset(to + side + row, 0, std::size_t(side) * sizeof *to);
  }
}

// A patch from the padded map.
OVSW_AVX512_INLINE void gather(const Shape& s, const std::int16_t* from, std::int64_t step, std::int16_t* to) {
  const std::int64_t row = std::int64_t(s.kernel_w) * s.in_c;
  for (int ky = 0; ky < s.kernel_h; ++ky, from += step, to += row) {
    std::int64_t i = 0;
    do {
      store(to + i, load(from + i));
      i += 32;
    } while (i < row);
  }
}

// The sums of P pixels x V slabs, as lists: gcc 12 leaves arrays in memory.
template <int V>
struct Row {
  __m512i sum;
  Row<V - 1> rest;

  OVSW_AVX512_MEMBER void clear() {
    sum = _mm512_setzero_si512();
    rest.clear();
  }
  OVSW_AVX512_MEMBER void load_weights(const std::int16_t* panel, std::int64_t slab) {
    sum = load(panel);
    rest.load_weights(panel + slab, slab);
  }
  OVSW_AVX512_MEMBER void add(__m512i x, const Row& w) {
    sum = _mm512_dpwssd_epi32(sum, x, w.sum);
    rest.add(x, w.rest);
  }
  OVSW_AVX512_MEMBER void put(__m512i* to) const {
    *to = sum;
    rest.put(to + 1);
  }
};
template <>
struct Row<0> {
  OVSW_AVX512_MEMBER void clear() {}
  OVSW_AVX512_MEMBER void load_weights(const std::int16_t*, std::int64_t) {}
  OVSW_AVX512_MEMBER void add(__m512i, const Row&) {}
  OVSW_AVX512_MEMBER void put(__m512i*) const {}
};

template <int P, int V>
struct Sums {
  Row<V> row;
  Sums<P - 1, V> rest;

  OVSW_AVX512_MEMBER void clear() {
    row.clear();
    rest.clear();
  }
  OVSW_AVX512_MEMBER void add(const std::int16_t* const* patches, std::int64_t at, const Row<V>& w) {
    std::int32_t pair;
    std::memcpy(&pair, patches[0] + at, sizeof pair);
    row.add(_mm512_set1_epi32(pair), w);
    rest.add(patches + 1, at, w);
  }
  OVSW_AVX512_MEMBER void put(__m512i* to) const {
    row.put(to);
    rest.put(to + 4);
  }
};
template <int V>
struct Sums<0, V> {
  OVSW_AVX512_MEMBER void clear() {}
  OVSW_AVX512_MEMBER void add(const std::int16_t* const*, std::int64_t, const Row<V>&) {}
  OVSW_AVX512_MEMBER void put(__m512i*) const {}
};

template <int P, int V>
__attribute__((noinline)) void dot(const std::int16_t* const* patches, const std::int16_t* panel, std::int64_t pairs,
                                   __m512i* to) {
  Sums<P, V> sums;
  sums.clear();
  const std::int64_t slab = pairs * 2 * kSlab;
  for (std::int64_t k = 0; k < pairs; ++k, panel += 2 * kSlab) {
    Row<V> w;
    w.load_weights(panel, slab);
    sums.add(patches, 2 * k, w);
  }
  sums.put(to);
}

// P pixels x up to 4 slabs; sums [pixel][4].
template <int P>
OVSW_AVX512_INLINE void dot(const std::int16_t* const* patches, const std::int16_t* panel, std::int64_t pairs,
                            int slabs, __m512i* to) {
  switch (slabs) {
    case 1:
      return dot<P, 1>(patches, panel, pairs, to);
    case 2:
      return dot<P, 2>(patches, panel, pairs, to);
    case 3:
      return dot<P, 3>(patches, panel, pairs, to);
    default:
      return dot<P, 4>(patches, panel, pairs, to);
  }
}

template <typename In, Add A>
void run(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const auto* weights = static_cast<const std::int16_t*>(args.weights);
  const std::int64_t pairs = patch_pairs(s), step = pitch(s);
  const int strip = strip_pixels(s), row0 = int(begin / s.out_w);
  const Target t = make_target(args);
  const int base_stride = int_base_stride(s.out_c);
  const int first_slab = args.first_channel / kSlab, last_slab = int(ceil_div(args.last_channel, kSlab));
  auto* const room = static_cast<std::int16_t*>(scratch);
  auto* const map = room + strip * 2 * pairs + kSlack;
  // Where patches start, and how far it is from one to the next.
  const bool whole = in_place<In>(s);
  const std::int16_t* start = map;
  const std::int64_t down = s.stride_h * step, right = std::int64_t(s.stride_w) * s.in_c;
  if (whole) {
    start = static_cast<const std::int16_t*>(args.in) + row0 * down;
  } else {
    pad_map<In>(s, args.in, begin, end, map);
  }
  int oy = row0, ox = int(begin % s.out_w);
  for (std::int64_t first = begin; first < end; first += strip) {
    const int pixels = end - first < strip ? int(end - first) : strip;
    const std::int16_t* patches[kStrip];
    const std::int32_t* base[kStrip];
    std::int16_t* to = room;
    for (int p = 0; p < pixels; ++p, to += 2 * pairs) {
      const std::int16_t* from = start + (oy - row0) * down + ox * right;
      patches[p] = whole ? from : to;
      if (!whole) gather(s, from, step, to);
      base[p] = args.border.base + std::int64_t(args.border.row_class[oy] + args.border.col_class[ox]) * base_stride;
      if (++ox == s.out_w) {
        ox = 0;
        ++oy;
      }
    }
    for (int slab = first_slab; slab < last_slab; slab += 4) {
      const std::int16_t* panel = weights + slab * pairs * 2 * kSlab;
      const int count = last_slab - slab < 4 ? last_slab - slab : 4;
      for (int p = 0; p < pixels; p += kPixels) {
        const int n = pixels - p < kPixels ? pixels - p : kPixels;
        __m512i sum[kPixels * 4];
        if (n == kPixels) {
          dot<kPixels>(patches + p, panel, pairs, count, sum);
        } else {
          for (int i = 0; i < n; ++i) dot<1>(patches + p + i, panel, pairs, count, sum + 4 * i);
        }
        for (int v = 0; v < count; v += 2) {
          finish<A>(t, args.shift, base + p, first + p, n, (slab + v) * kSlab, count - v, sum + v, 4,
                    [](__m512i y, int) { return y; });
        }
      }
    }
  }
}

template <typename In>
void conv(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (begin >= end) return;
  switch (add_of(args)) {
    case Add::kSum:
      return run<In, Add::kSum>(args, begin, end, scratch);
    case Add::kNothing:
      return run<In, Add::kNothing>(args, begin, end, scratch);
    case Add::kInt16:
      return run<In, Add::kInt16>(args, begin, end, scratch);
    case Add::kInt32:
      return run<In, Add::kInt32>(args, begin, end, scratch);
  }
}

std::size_t packed_bytes(const Shape& s) {
  return std::size_t(ceil_div(s.out_c, kSlab) * patch_pairs(s)) * kSlab * 2 * sizeof(std::int16_t);
}

void pack(const Shape& s, const std::int16_t* weights, void* packed) {
  const std::int64_t size = patch_size(s), pairs = patch_pairs(s);
  auto* out = static_cast<std::int16_t*>(packed);
  std::memset(out, 0, packed_bytes(s));
  for (int c = 0; c < s.out_c; ++c) {
    std::int16_t* slab = out + (c / kSlab * pairs * kSlab + c % kSlab) * 2;
    for (std::int64_t k = 0; k < size; ++k) slab[k / 2 * kSlab * 2 + k % 2] = weights[c * size + k];
  }
}

std::size_t scratch_bytes(const Shape& s) {
  const std::int64_t map = pitch(s) * (s.in_h + 2 * s.pad_h) + kSlack;
  return std::size_t(strip_pixels(s) * 2 * patch_pairs(s) + kSlack + map) * sizeof(std::int16_t);
}

}  // namespace

std::size_t int_conv_u8_packed_bytes(const Shape& s) { return packed_bytes(s); }
void int_conv_u8_pack(const Shape& s, const std::int16_t* weights, void* packed) { pack(s, weights, packed); }
std::size_t int_conv_u8_scratch_bytes(const Shape& s) { return scratch_bytes(s); }
void int_conv_u8(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  conv<std::uint8_t>(args, begin, end, scratch);
}

std::size_t int_conv_i16_packed_bytes(const Shape& s) { return packed_bytes(s); }
void int_conv_i16_pack(const Shape& s, const std::int16_t* weights, void* packed) { pack(s, weights, packed); }
std::size_t int_conv_i16_scratch_bytes(const Shape& s) { return scratch_bytes(s); }
void int_conv_i16(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  conv<std::int16_t>(args, begin, end, scratch);
}

}  // namespace ovsw::x86_avx512
