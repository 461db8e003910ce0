// The binary convolution with VPOPCNTD: 16 output channels x 32 bits to a register, the activations' 32 bits broadcast.
//
// Three words at a time go through a carry-save adder, half of which comes for free. With x_i = a_i xor w_i,
//     s = x_1 ^ x_2 ^ x_3 = (a_1 ^ a_2 ^ a_3) ^ (w_1 ^ w_2 ^ w_3)
// is one xor of an activation and a weight, each made beforehand; x_3 itself is not needed, as
//     c = majority(x_1, x_2, x_3) = x_1 & x_2 | (x_1 ^ x_2) & ~s,   one VPTERNLOGD
//     popcount(x_1) + popcount(x_2) + popcount(x_3) = popcount(s) + 2 * popcount(c)
// that is 8 operations (3 xor, 1 ternary, 2 popcounts, 2 sums) for 3 * 512 MACs instead of 9, and 2 popcounts, which
// have one port on Intel, instead of 3.
//
// A patch is cut in three parts a_1, a_2, a_3 of `triples` words each: the kernel rows if there are three, otherwise
// thirds of all rows one after another. The third is stored as a_1 ^ a_2 ^ a_3. Weights likewise:
//     packed[slab of 16 channels][triple][3][16]
// Register plan for 4 pixels x 2 slabs: 16 sums, 6 of weights, 3 to compute in; for 8 x 1 16 + 3 + 3.

#include "kernels/portable/integer.h"
#include "kernels/x86_avx512/epilogue.h"

namespace ovsw::x86_avx512 {
namespace {

constexpr int kSlab = 16;  // output channels to a register
constexpr int tile_pixels(int slabs) { return slabs == 1 ? 8 : 4; }
constexpr int kBatch = 16;   // pixels for one call of the epilogue
constexpr int kStrip = 128;  // patches gathered at a time
constexpr std::int64_t kStripBytes = 64 << 10;

struct Layout {
  std::int64_t tap_bytes, row_bytes, patch_bytes;  // of a tap, a kernel row, a patch
  std::int64_t pitch;                              // bytes of a padded input row
  std::int64_t triples;                            // words of a third of a patch
  std::int64_t stride;                             // bytes per patch
  int slabs, strip;
};

Layout layout(const Shape& s) {
  Layout l{};
  l.tap_bytes = ceil_div(s.in_c, 8);
  l.row_bytes = l.tap_bytes * s.kernel_w;
  l.patch_bytes = l.row_bytes * s.kernel_h;
  l.pitch = l.tap_bytes * (s.in_w + 2 * s.pad_w);
  l.triples = ceil_div(l.patch_bytes, 12);  // the same number if parts are rows
  l.stride = round_up(l.triples * 12, 64);
  l.slabs = int(ceil_div(s.out_c, kSlab));
  const std::int64_t patches = kStripBytes / l.stride / 8 * 8;
  l.strip = int(patches < 8 ? 8 : patches > kStrip ? kStrip : patches);
  return l;
}

// Scratch, each part 64-byte aligned.
struct Scratch {
  std::uint8_t* map;          // the input rows in use with their padding, tap_bytes per pixel
  std::uint8_t* patches;      // [strip][stride]
  const std::int32_t** base;  // per pixel of the strip
  std::int32_t* mult;         // -2 * mult
  std::size_t bytes;
};

Scratch carve(const Shape& s, const Layout& l, void* scratch) {
  Scratch w{};
  auto* p = static_cast<unsigned char*>(scratch);
  std::size_t at = 0;
  const auto take = [&](std::int64_t bytes) {
    unsigned char* part = p ? p + at : nullptr;
    at += std::size_t(round_up(bytes, 64));
    return part;
  };
  w.map = take(l.pitch * (s.in_h + 2 * s.pad_h));
  w.patches = take(l.strip * l.stride);
  w.base = reinterpret_cast<const std::int32_t**>(take(l.strip * std::int64_t(sizeof(std::int32_t*))));
  w.mult = reinterpret_cast<std::int32_t*>(take(l.slabs * kSlab * std::int64_t(sizeof(std::int32_t))));
  w.bytes = at;
  return w;
}

// Copies n pixels of `bytes` each, `from_step` apart, to places side by side.
template <int Bytes>
OVSW_AVX512_INLINE void copy_pixels(const std::uint8_t* from, std::int64_t from_step, int n, std::int64_t bytes,
                                    std::uint8_t* to) {
  const std::int64_t size = Bytes ? Bytes : bytes;
  for (int i = 0; i < n; ++i, from += from_step, to += size) std::memcpy(to, from, std::size_t(size));
}

// The input rows under output pixels [begin, end) to w.map, with zeros around, so that no later step sees a border.
void pad_map(const Shape& s, const Layout& l, const void* in, std::int64_t begin, std::int64_t end, std::uint8_t* to) {
  const std::int64_t pixel_bytes = ceil_div(s.in_c, 64) * 8;
  const int y0 = int(begin / s.out_w) * s.stride_h - s.pad_h;
  const int y1 = int((end - 1) / s.out_w) * s.stride_h - s.pad_h + s.kernel_h;
  const std::int64_t side = s.pad_w * l.tap_bytes;
  for (int y = y0; y < y1; ++y, to += l.pitch) {
    if (y < 0 || y >= s.in_h) {
      std::memset(to, 0, std::size_t(l.pitch));
      continue;
    }
    const std::uint8_t* from = static_cast<const std::uint8_t*>(in) + std::int64_t(y) * s.in_w * pixel_bytes;
    std::memset(to, 0, std::size_t(side));
    std::memset(to + l.pitch - side, 0, std::size_t(side));
    if (l.tap_bytes == pixel_bytes) {
      std::memcpy(to + side, from, std::size_t(l.tap_bytes * s.in_w));
    } else if (l.tap_bytes == 2) {
      copy_pixels<2>(from, pixel_bytes, s.in_w, 2, to + side);
    } else if (l.tap_bytes == 4) {
      copy_pixels<4>(from, pixel_bytes, s.in_w, 4, to + side);
    } else {
      copy_pixels<0>(from, pixel_bytes, s.in_w, l.tap_bytes, to + side);
    }
  }
}

// Where the three parts of a patch lie: `step` apart from its start in the map (or in a copy), and how many of their
// bytes exist; the rest is zero.
struct Parts {
  bool copied;
  std::int64_t third, step, size[3];
};

Parts parts(const Shape& s, const Layout& l) {
  Parts p{s.kernel_h != 3 && s.kernel_h != 1, 4 * l.triples, l.pitch, {l.row_bytes, l.row_bytes, l.row_bytes}};
  if (s.kernel_h == 3) return p;
  p.step = p.third;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t left = l.patch_bytes - i * p.third;
    p.size[i] = left < 0 ? 0 : left < p.third ? left : p.third;
  }
  return p;
}

// 64 bytes of the parts at `from`, of which those in the masks exist: a_1, a_2 and the xor of all to `to`.
OVSW_AVX512_INLINE void gather64(const std::uint8_t* from, std::int64_t step, __mmask64 mask1, __mmask64 mask2,
                                 __mmask64 mask3, std::uint8_t* to, std::int64_t third, __mmask64 mask) {
  const __m512i a = _mm512_maskz_loadu_epi8(mask1, from), b = _mm512_maskz_loadu_epi8(mask2, from + step);
  const __m512i c = _mm512_maskz_loadu_epi8(mask3, from + 2 * step);
  _mm512_mask_storeu_epi8(to, mask, a);
  _mm512_mask_storeu_epi8(to + third, mask, b);
  _mm512_mask_storeu_epi8(to + 2 * third, mask, _mm512_ternarylogic_epi32(a, b, c, 0x96));
}

void gather_long(const Shape& s, const Layout& l, const Parts& p, const std::uint8_t* from, std::uint8_t* to) {
  if (p.copied) {
    std::uint8_t* at = to;
    for (int ky = 0; ky < s.kernel_h; ++ky, from += l.pitch, at += l.row_bytes) {
      for (std::int64_t i = 0; i < l.row_bytes; i += 64) {
        const auto mask = __mmask64(low_bits(l.row_bytes - i));
        _mm512_mask_storeu_epi8(at + i, mask, _mm512_maskz_loadu_epi8(mask, from + i));
      }
    }
    from = to;
  }
  for (std::int64_t i = 0; i < p.third; i += 64) {
    gather64(from + i, p.step, __mmask64(low_bits(p.size[0] - i)), __mmask64(low_bits(p.size[1] - i)),
             __mmask64(low_bits(p.size[2] - i)), to + i, p.third, __mmask64(low_bits(p.third - i)));
  }
}

// Patches and bases of a strip; (y, x) is its first output pixel and then the one after its last.
void prepare(const IntArgs& args, const Layout& l, const Scratch& w, int row0, int pixels, int* y, int* x) {
  const Shape& s = args.shape;
  const Parts p = parts(s, l);
  const std::int64_t down = s.stride_h * l.pitch, right = s.stride_w * l.tap_bytes;
  const std::int64_t base_stride = int_base_stride(s.out_c);
  const auto mask1 = __mmask64(low_bits(p.size[0])), mask2 = __mmask64(low_bits(p.size[1]));
  const auto mask3 = __mmask64(low_bits(p.size[2])), mask = __mmask64(low_bits(p.third));
  const bool one = !p.copied && p.third <= 64;
  std::uint8_t* to = w.patches;
  for (int i = 0; i < pixels; ++i, to += l.stride) {
    const std::uint8_t* from = w.map + (*y - row0) * down + *x * right;
    if (one) {
      gather64(from, p.step, mask1, mask2, mask3, to, p.third, mask);
    } else {
      gather_long(s, l, p, from, to);
    }
    w.base[i] = args.border.base + (args.border.row_class[*y] + args.border.col_class[*x]) * base_stride;
    if (++*x == s.out_w) {
      *x = 0;
      ++*y;
    }
  }
}

// The sums of one pixel x V slabs. Lists, as gcc 12 leaves arrays in memory.
template <int V>
struct Weights {
  __m512i w1, w2, w;
  Weights<V - 1> rest;

  OVSW_AVX512_MEMBER void get(const std::uint8_t* panel, std::int64_t slab) {
    w1 = load(panel);
    w2 = load(panel + 64);
    w = load(panel + 128);
    rest.get(panel + slab, slab);
  }
};
template <>
struct Weights<0> {
  OVSW_AVX512_MEMBER void get(const std::uint8_t*, std::int64_t) {}
};

template <int V>
struct Row {
  __m512i sum, carry;
  Row<V - 1> rest;

  OVSW_AVX512_MEMBER void clear() {
    sum = carry = _mm512_setzero_si512();
    rest.clear();
  }
  OVSW_AVX512_MEMBER void add(const std::int32_t* patch, std::int64_t third, const Weights<V>& w) {
    const __m512i x1 = _mm512_xor_si512(w.w1, _mm512_set1_epi32(patch[0]));
    const __m512i x2 = _mm512_xor_si512(w.w2, _mm512_set1_epi32(patch[third]));
    const __m512i s = _mm512_xor_si512(w.w, _mm512_set1_epi32(patch[2 * third]));
    const __m512i c = _mm512_ternarylogic_epi32(x1, x2, s, 0xd4);
    // In place: with intrinsics gcc copies every sum in every round, and spills some.
    __asm__ volatile("vpaddd %1, %0, %0" : "+v"(sum) : "v"(_mm512_popcnt_epi32(s)));
    __asm__ volatile("vpaddd %1, %0, %0" : "+v"(carry) : "v"(_mm512_popcnt_epi32(c)));
    rest.add(patch, third, w.rest);
  }
  OVSW_AVX512_MEMBER void put(__m512i* to) const {
    *to = _mm512_add_epi32(sum, _mm512_add_epi32(carry, carry));
    rest.put(to + 1);
  }
};
template <>
struct Row<0> {
  OVSW_AVX512_MEMBER void clear() {}
  OVSW_AVX512_MEMBER void add(const std::int32_t*, std::int64_t, const Weights<0>&) {}
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
  OVSW_AVX512_MEMBER void add(const std::uint8_t* patches, std::int64_t stride, std::int64_t third,
                              const Weights<V>& w) {
    row.add(reinterpret_cast<const std::int32_t*>(patches), third, w);
    rest.add(patches + stride, stride, third, w);
  }
  OVSW_AVX512_MEMBER void put(__m512i* to) const {
    row.put(to);
    rest.put(to + 2);
  }
};
template <int V>
struct Sums<0, V> {
  OVSW_AVX512_MEMBER void clear() {}
  OVSW_AVX512_MEMBER void add(const std::uint8_t*, std::int64_t, std::int64_t, const Weights<V>&) {}
  OVSW_AVX512_MEMBER void put(__m512i*) const {}
};

// Popcounts [pixel][2] of P patches x V slabs.
template <int P, int V>
__attribute__((noinline)) void count(const std::uint8_t* patches, std::int64_t stride, const std::uint8_t* panel,
                                     std::int64_t triples, __m512i* to) {
  Sums<P, V> sums;
  sums.clear();
  const std::int64_t slab = triples * 192;
  for (std::int64_t k = 0; k < triples; ++k, patches += 4, panel += 192) {
    Weights<V> w;
    w.get(panel, slab);
    sums.add(patches, stride, triples, w);
  }
  sums.put(to);
}

template <int V, Add A>
__attribute__((noinline)) void finish_counts(const Target& t, const std::int32_t* mult, const std::int32_t* shift,
                                             const std::int32_t* const* base, std::int64_t pixel, int pixels, int c,
                                             const __m512i* counts) {
  const std::int32_t* m = mult + c;
  finish<A>(t, shift, base, pixel, pixels, c, V, counts, 2,
            [m](__m512i count, int slab)
                __attribute__((always_inline)) { return _mm512_mullo_epi32(count, load(m + slab * kSlab)); });
}

// Slabs `slab` to slab + V - 1 of a strip.
template <int V, Add A>
void panel(const IntArgs& args, const Layout& l, const Scratch& w, int slab, std::int64_t begin, std::int64_t end) {
  constexpr int kPixels = tile_pixels(V);
  const Target t = make_target(args);
  const auto* weights = static_cast<const std::uint8_t*>(args.weights) + slab * l.triples * 192;
  for (std::int64_t first = begin; first < end; first += kBatch) {
    const int batch = end - first < kBatch ? int(end - first) : kBatch;
    const std::uint8_t* patches = w.patches + (first - begin) * l.stride;
    __m512i counts[kBatch * 2];
    int i = 0;
    for (; i + kPixels <= batch; i += kPixels) {
      count<kPixels, V>(patches + i * l.stride, l.stride, weights, l.triples, counts + 2 * i);
    }
    for (; i < batch; ++i) count<1, V>(patches + i * l.stride, l.stride, weights, l.triples, counts + 2 * i);
    finish_counts<V, A>(t, w.mult, args.shift, w.base + (first - begin), first, batch, slab * kSlab, counts);
  }
}

template <Add A>
void run(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Layout l = layout(s);
  const Scratch w = carve(s, l, scratch);
  pad_map(s, l, args.in, begin, end, w.map);
  for (int c = args.first_channel; c < args.last_channel; ++c) w.mult[c] = -2 * args.mult[c];
  const int first_slab = args.first_channel / kSlab, last_slab = int(ceil_div(args.last_channel, kSlab));
  const int row0 = int(begin / s.out_w);
  int y = row0, x = int(begin % s.out_w);
  for (std::int64_t first = begin; first < end; first += l.strip) {
    const std::int64_t last = end - first < l.strip ? end : first + l.strip;
    prepare(args, l, w, row0, int(last - first), &y, &x);
    for (int slab = first_slab; slab < last_slab; slab += 2) {
      if (last_slab - slab >= 2) {
        panel<2, A>(args, l, w, slab, first, last);
      } else {
        panel<1, A>(args, l, w, slab, first, last);
      }
    }
  }
}

}  // namespace

std::size_t int_bconv_packed_bytes(const Shape& s) {
  const Layout l = layout(s);
  return std::size_t(l.slabs) * std::size_t(l.triples) * 192;
}

void int_bconv_pack(const Shape& s, const std::uint64_t* weights, void* packed) {
  const Layout l = layout(s);
  auto* out = static_cast<std::uint8_t*>(packed);
  std::memset(out, 0, int_bconv_packed_bytes(s));
  const auto* in = reinterpret_cast<const std::uint8_t*>(weights);
  const std::int64_t file_tap = ceil_div(s.in_c, 64) * 8, taps = std::int64_t(s.kernel_h) * s.kernel_w;
  const std::int64_t third = 4 * l.triples;
  for (int c = 0; c < s.out_c; ++c) {
    std::uint8_t* slab = out + c / kSlab * l.triples * 192 + c % kSlab * 4;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::uint8_t* from = in + (c * taps + tap) * file_tap;
      for (std::int64_t i = 0; i < l.tap_bytes; ++i) {
        const std::int64_t at = tap * l.tap_bytes + i;
        const std::int64_t size = s.kernel_h == 3 ? l.row_bytes : third, part = at / size, byte = at % size;
        std::uint8_t* to = slab + byte / 4 * 192 + byte % 4;
        if (part < 2) to[part * 64] = from[i];
        to[128] = std::uint8_t(to[128] ^ from[i]);
      }
    }
  }
}

std::size_t int_bconv_scratch_bytes(const Shape& s) { return carve(s, layout(s), nullptr).bytes; }

void int_bconv(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (begin >= end) return;
  switch (add_of(args)) {
    case Add::kSum:
      return run<Add::kSum>(args, begin, end, scratch);
    case Add::kNothing:
      return run<Add::kNothing>(args, begin, end, scratch);
    case Add::kInt16:
      return run<Add::kInt16>(args, begin, end, scratch);
    case Add::kInt32:
      return run<Add::kInt32>(args, begin, end, scratch);
  }
}

}  // namespace ovsw::x86_avx512
