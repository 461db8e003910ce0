// The convolutions over pixels and over the 16-bit stream.
//
// Patches of 16-bit numbers, in pairs, times panels of kLanes output channels:
//     packed[panel][pair][lane][2],  pairs over (kernel_h, kernel_w, in_c) as in the file, padded with a zero weight
// so that one VPMADDWD does a pair for 8 channels. A patch is contiguous and its pairs run on from one kernel row to
// the next: 7x7x3 takes 74 pairs where separate rows would take 77. Sums are exact in 32 bits; VPMADDWD's one overflow,
// 2^31, is right modulo 2^32.
//
// Register plan: kPixels x 2 sums, 2 of weights, one pair, one product: 16.

#include "kernels/portable/integer.h"
#include "kernels/x86_avx2/epilogue.h"

namespace ovsw::x86_avx2 {

const int kPixelCentre = 0;

namespace {

constexpr int kPixels = 6;                   // of a tile
constexpr int kLanes = 16;                   // channels of a tile: two registers
constexpr int kStrip = 48;                   // patches gathered at a time: a multiple of kPixels
constexpr int kSlack = 32;                   // elements that copying in vectors may touch past the end
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

OVSW_AVX2_INLINE __m256i load16(const std::uint8_t* p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
OVSW_AVX2_INLINE __m256i load16(const std::int16_t* p) { return load(p); }

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
    for (std::int64_t i = 0; i < row; i += 16) store(to + side + i, load16(from + i));
    std::memset(to + side + row, 0, std::size_t(side) * sizeof *to);
  }
}

// A patch from the padded map. Chunks: vectors to a kernel row, 0 if more than two.
template <int Chunks>
OVSW_AVX2_INLINE void gather(const Shape& s, const std::int16_t* from, std::int16_t* to) {
  const std::int64_t row = std::int64_t(s.kernel_w) * s.in_c, step = pitch(s);
  const std::int64_t copied = Chunks ? Chunks * 16 : row;
  for (int ky = 0; ky < s.kernel_h; ++ky, from += step, to += row) {
    for (std::int64_t i = 0; i < copied; i += 16) store(to + i, load(from + i));
  }
}

// The sums of P pixels x 16 channels, a list for the same reasons as in bconv.cc.
template <int P>
struct Sums {
  __m256i sum0, sum1;
  Sums<P - 1> rest;

  OVSW_AVX2_MEMBER void clear() {
    sum0 = sum1 = _mm256_setzero_si256();
    rest.clear();
  }
  OVSW_AVX2_MEMBER void add(const std::int16_t* const* patches, std::int64_t at, __m256i w0, __m256i w1) {
    std::int32_t pair;
    std::memcpy(&pair, patches[0] + at, sizeof pair);
    const __m256i x = _mm256_set1_epi32(pair);
    __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sum0) : "x"(_mm256_madd_epi16(x, w0)));
    __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sum1) : "x"(_mm256_madd_epi16(x, w1)));
    rest.add(patches + 1, at, w0, w1);
  }
  OVSW_AVX2_MEMBER void put(__m256i* to) const {
    to[0] = sum0;
    to[1] = sum1;
    rest.put(to + 2);
  }
};

template <>
struct Sums<0> {
  OVSW_AVX2_MEMBER void clear() {}
  OVSW_AVX2_MEMBER void add(const std::int16_t* const*, std::int64_t, __m256i, __m256i) {}
  OVSW_AVX2_MEMBER void put(__m256i*) const {}
};

template <int P>
__attribute__((noinline)) void dot(const std::int16_t* const* patches, const std::int16_t* panel, std::int64_t pairs,
                                   __m256i* to) {
  Sums<P> sums;
  sums.clear();
  for (std::int64_t k = 0; k < pairs; ++k, panel += 2 * kLanes) sums.add(patches, 2 * k, load(panel), load(panel + 16));
  sums.put(to);
}

template <typename In, Add A>
void run(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const auto* weights = static_cast<const std::int16_t*>(args.weights);
  const std::int64_t pairs = patch_pairs(s);
  const int strip = strip_pixels(s), row0 = int(begin / s.out_w);
  const Target t = make_target(args);
  const int base_stride = int_base_stride(s.out_c);
  auto* const room = static_cast<std::int16_t*>(scratch);
  auto* const map = room + strip * 2 * pairs + kSlack;
  // Where patches start, and how far it is from one to the next.
  const bool whole = in_place<In>(s);
  const std::int16_t* start = map;
  const std::int64_t down = s.stride_h * pitch(s);
  if (whole) {
    start = static_cast<const std::int16_t*>(args.in) + row0 * down;
  } else {
    pad_map<In>(s, args.in, begin, end, map);
  }
  const std::int64_t right = std::int64_t(s.stride_w) * s.in_c;
  const std::int64_t row = std::int64_t(s.kernel_w) * s.in_c;
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
        if (row <= 16) {
          gather<1>(s, from, to);
        } else if (row <= 32) {
          gather<2>(s, from, to);
        } else {
          gather<0>(s, from, to);
        }
      }
      base[p] = args.border.base + std::int64_t(args.border.row_class[oy] + args.border.col_class[ox]) * base_stride;
      if (++ox == s.out_w) {
        ox = 0;
        ++oy;
      }
    }
    for (int c = args.first_channel; c < args.last_channel; c += kLanes) {
      const std::int16_t* panel = weights + c * pairs * 2;
      const int n = s.out_c - c;
      for (int p = 0; p < pixels; p += kPixels) {
        const int count = pixels - p < kPixels ? pixels - p : kPixels;
        __m256i sum[kPixels * 2];
        if (count == kPixels) {
          dot<kPixels>(patches + p, panel, pairs, sum);
        } else {
          for (int i = 0; i < count; ++i) dot<1>(patches + p + i, panel, pairs, sum + 2 * i);
        }
        for (int i = 0; i < count; ++i) {
          const std::int64_t pixel = first + p + i;
          const std::int32_t* b = base[p + i] + c;
          const __m256i v =
              finish16<A>(t, pixel * s.out_c + c, n, args.shift + c, _mm256_add_epi32(sum[2 * i], load(b)),
                          _mm256_add_epi32(sum[2 * i + 1], load(b + 8)));
          if (t.bits) put_bits16(t.bits + pixel * t.bits_step, c, n, v);
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
  return std::size_t(ceil_div(s.out_c, kLanes) * patch_pairs(s)) * kLanes * 2 * sizeof(std::int16_t);
}

void pack(const Shape& s, const std::int16_t* weights, void* packed) {
  const std::int64_t size = patch_size(s), pairs = patch_pairs(s);
  auto* out = static_cast<std::int16_t*>(packed);
  std::memset(out, 0, packed_bytes(s));
  for (int c = 0; c < s.out_c; ++c) {
    std::int16_t* panel = out + (c / kLanes * pairs * kLanes + c % kLanes) * 2;
    for (std::int64_t k = 0; k < size; ++k) panel[k / 2 * kLanes * 2 + k % 2] = weights[c * size + k];
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

}  // namespace ovsw::x86_avx2
