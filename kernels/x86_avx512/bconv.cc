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

#include "kernels/x86/bits.h"
#include "kernels/x86/epilogue.h"
#include "kernels/x86_avx512/kernels.h"

namespace ovsw::x86_avx512 {
namespace {

using namespace x86;

constexpr int kSlab = 16;  // output channels to a register
constexpr int tile_pixels(int slabs) { return slabs == 1 ? 8 : 4; }
constexpr int kBatch = 16;   // pixels for one call of the epilogue
constexpr int kStrip = 128;  // patches gathered at a time
constexpr std::int64_t kStripBytes = 64 << 10;
constexpr int kSlack = 64;  // bytes that copying in vectors may touch past the end of maps and patches

struct Layout : BitMap {
  std::int64_t triples;  // words of a third of a patch
  std::int64_t stride;   // bytes per patch
  int slabs, strip;

  explicit Layout(const Shape& s) : BitMap(s) {
    triples = ceil_div(patch_bytes, 12);  // the same number if parts are rows
    stride = round_up(triples * 12, 64);
    slabs = int(ceil_div(s.out_c, kSlab));
    const std::int64_t patches = kStripBytes / stride / 8 * 8;
    strip = int(patches < 8 ? 8 : patches > kStrip ? kStrip : patches);
  }
};

// N bytes, in a register.
template <int N>
struct Bytes {
  typedef std::uint64_t Type __attribute__((vector_size(N)));
};

struct Scratch {
  std::uint8_t* map;          // the input rows under a band with their padding, tap_bytes per pixel
  std::uint8_t* patches;      // [strip][stride]
  const std::int32_t** base;  // per pixel of the strip
  std::int32_t* mult;         // -2 * mult
  std::int32_t* window;       // 2 * window scale
  std::int32_t* ones;         // per pixel of the strip: how many bits of its patch are 1; null without a window scale
  std::size_t bytes;
};

Scratch carve(const Shape& s, const Layout& l, void* scratch) {
  Scratch w{};
  Carver room(scratch);
  w.map = room.take<std::uint8_t>(l.pitch * band_rows(s, l.pitch) + kSlack);
  w.patches = room.take<std::uint8_t>(l.strip * l.stride + kSlack);
  w.base = room.take<const std::int32_t*>(l.strip);
  w.mult = room.take<std::int32_t>(l.slabs * kSlab);
  w.ones = room.take<std::int32_t>(l.strip);
  w.window = room.take<std::int32_t>(l.slabs * kSlab);
  w.bytes = room.bytes();
  return w;
}

// Where the three parts of a patch lie: `step` apart from its start in the map (or in a copy), and how many of their
// bytes exist; the rest is zero.
struct Parts {
  bool copied;
  std::int64_t third, step, size[3];
};

Parts parts(const Shape& s, const Layout& l) {
  Parts p{s.window_h != 3 && s.window_h != 1, 4 * l.triples, l.pitch, {l.row_bytes, l.row_bytes, l.row_bytes}};
  if (s.window_h == 3) return p;
  p.step = p.third;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t left = l.patch_bytes - i * p.third;
    p.size[i] = left < 0 ? 0 : left < p.third ? left : p.third;
  }
  return p;
}

// a_1, a_2 and the xor of all three parts at `from`, by registers V of at least their size: surplus bytes are
// overwritten by the next part or patch, or never read. clear(a, b, c) clears the bits that do not exist.
template <typename V, typename Clear>
OVSW_INLINE void gather_words(const std::uint8_t* from, std::int64_t step, Clear clear, std::uint8_t* to,
                              std::int64_t third) {
  V a, b, c;
  std::memcpy(&a, from, sizeof a);
  std::memcpy(&b, from + step, sizeof b);
  std::memcpy(&c, from + 2 * step, sizeof c);
  clear(a, b, c);
  c ^= a ^ b;
  std::memcpy(to, &a, sizeof a);
  std::memcpy(to + third, &b, sizeof b);
  std::memcpy(to + 2 * third, &c, sizeof c);
}

// 64 bytes of the parts at `from`, of which those in the masks exist: a_1, a_2 and the xor of all to `to`. If Ones,
// returns how many of their bits are 1.
template <bool Ones>
OVSW_INLINE int gather64(const std::uint8_t* from, std::int64_t step, __mmask64 mask1, __mmask64 mask2, __mmask64 mask3,
                         std::uint8_t* to, std::int64_t third, __mmask64 mask) {
  const Vec a = _mm512_maskz_loadu_epi8(mask1, from), b = _mm512_maskz_loadu_epi8(mask2, from + step);
  const Vec c = _mm512_maskz_loadu_epi8(mask3, from + 2 * step);
  _mm512_mask_storeu_epi8(to, mask, a);
  _mm512_mask_storeu_epi8(to + third, mask, b);
  _mm512_mask_storeu_epi8(to + 2 * third, mask, _mm512_ternarylogic_epi32(a, b, c, 0x96));
  if constexpr (!Ones) return 0;
  return _mm512_reduce_add_epi32(add32(add32(_mm512_popcnt_epi32(a), _mm512_popcnt_epi32(b)), _mm512_popcnt_epi32(c)));
}

template <bool Ones>
__attribute__((noinline)) int gather_long(const Shape& s, const Layout& l, const Parts& p, const std::uint8_t* from,
                                          std::uint8_t* to) {
  if (p.copied) {
    std::uint8_t* at = to;
    for (int ky = 0; ky < s.window_h; ++ky, from += l.pitch, at += l.row_bytes) {
      for (std::int64_t i = 0; i < l.row_bytes; i += 64) {
        const auto mask = __mmask64(low_bits(l.row_bytes - i));
        _mm512_mask_storeu_epi8(at + i, mask, _mm512_maskz_loadu_epi8(mask, from + i));
      }
    }
    from = to;
  }
  int ones = 0;
  for (std::int64_t i = 0; i < p.third; i += 64) {
    ones += gather64<Ones>(from + i, p.step, __mmask64(low_bits(p.size[0] - i)), __mmask64(low_bits(p.size[1] - i)),
                           __mmask64(low_bits(p.size[2] - i)), to + i, p.third, __mmask64(low_bits(p.third - i)));
  }
  return ones;
}

// Patches, bases and, if Ones, ones of the strip from output pixel `first` on; the map has the rows under those from
// `begin` on.
template <bool Ones>
void prepare(const KernelArgs& args, const Layout& l, const Scratch& w, std::int64_t begin, std::int64_t first,
             std::int64_t last) {
  const Shape s = args.shape;
  const Border border = args.border;
  const Parts p = parts(s, l);
  const std::int64_t down = s.stride_h * l.pitch, right = s.stride_w * l.tap_bytes, stride = l.stride;
  const std::int64_t base_stride = padded_channels(s.out_c);
  const auto mask1 = __mmask64(low_bits(p.size[0])), mask2 = __mmask64(low_bits(p.size[1]));
  const auto mask3 = __mmask64(low_bits(p.size[2])), mask = __mmask64(low_bits(p.third));
  const bool one = !p.copied && p.third <= 64;
  const bool whole = one && !Ones && p.size[0] == p.third && p.size[1] == p.third && p.size[2] == p.third;
  std::int64_t y = first / s.out_w, x = first % s.out_w;
  std::uint8_t* to = w.patches;
  const std::int32_t** base = w.base;
  std::int32_t* ones = w.ones;
  for (std::int64_t left = last - first, n; left > 0; left -= n, ++y, x = 0) {
    n = left < s.out_w - x ? left : s.out_w - x;
    const std::int32_t* row_base = border.base + border.row_class[y] * base_stride;
    for (std::int64_t i = 0; i < n; ++i) *base++ = row_base + border.col_class[x + i] * base_stride;
    const std::uint8_t* from = w.map + (y - begin / s.out_w) * down + x * right;
    const auto gather_each = [&](auto gather) OVSW_INLINE_LAMBDA {
      for (std::int64_t i = 0; i < n; ++i, from += right, to += stride) {
        const int count = gather(from, to);
        if constexpr (Ones) *ones++ = count;
      }
    };
    const auto gather_by = [&](auto v, auto clear) OVSW_INLINE_LAMBDA {
      gather_each([&](const std::uint8_t* patch, std::uint8_t* out) OVSW_INLINE_LAMBDA {
        gather_words<decltype(v)>(patch, p.step, clear, out, p.third);
        return 0;
      });
    };
    const auto keep = [](auto&, auto&, auto&) OVSW_INLINE_LAMBDA {};
    if (one && !Ones && p.third <= 8) {
      const auto bits1 = low_bits(8 * p.size[0]), bits2 = low_bits(8 * p.size[1]), bits3 = low_bits(8 * p.size[2]);
      gather_by(std::uint64_t(), [=](std::uint64_t& a, std::uint64_t& b, std::uint64_t& c) OVSW_INLINE_LAMBDA {
        a &= bits1;
        b &= bits2;
        c &= bits3;
      });
    } else if (whole && p.third <= 16) {
      gather_by(Bytes<16>::Type{}, keep);
    } else if (whole && p.third <= 32) {
      gather_by(Bytes<32>::Type{}, keep);
    } else if (whole) {
      gather_by(Bytes<64>::Type{}, keep);
    } else if (one) {
      gather_each([&](const std::uint8_t* patch, std::uint8_t* out) OVSW_INLINE_LAMBDA {
        return gather64<Ones>(patch, p.step, mask1, mask2, mask3, out, p.third, mask);
      });
    } else {
      gather_each([&](const std::uint8_t* patch, std::uint8_t* out)
                      OVSW_INLINE_LAMBDA { return gather_long<Ones>(s, l, p, patch, out); });
    }
  }
}

struct Weights {
  Vec w1, w2, w;
};
struct Counts {
  Vec sum, carry;
};
template <bool Is>
struct First {
  static constexpr bool kIs = Is;
};

// Popcounts [pixel][2] of P patches x V slabs.
template <int P, int V>
__attribute__((noinline)) void count(const std::uint8_t* patches, std::int64_t stride, const std::uint8_t* panel,
                                     std::int64_t triples, Vec* to) {
  using Row = List<Counts, V>;
  const std::int64_t slab = triples * 192;
  List<Row, P> rows;
  // A triple; the first one gives the counts that the others are added to.
  const auto triple = [&](auto first) OVSW_INLINE_LAMBDA {
    List<Weights, V> weights;
    weights.each([](Weights& w, const std::uint8_t* at)
                     OVSW_INLINE_LAMBDA { w = {load(at), load(at + 64), load(at + 128)}; },
                 panel, slab);
    rows.each([&](Row& row, int p) OVSW_INLINE_LAMBDA {
      const auto* patch = reinterpret_cast<const std::int32_t*>(patches + p * stride);
      row.each_with(weights, [&](Counts& n, const Weights& w) OVSW_INLINE_LAMBDA {
        const Vec x1 = _mm512_xor_si512(w.w1, all32(patch[0]));
        const Vec x2 = _mm512_xor_si512(w.w2, all32(patch[triples]));
        const Vec s = _mm512_xor_si512(w.w, all32(patch[2 * triples]));
        const Vec c = _mm512_ternarylogic_epi32(x1, x2, s, 0xd4);
        if constexpr (decltype(first)::kIs) {
          n = {_mm512_popcnt_epi32(s), _mm512_popcnt_epi32(c)};
        } else {
          // In place: with intrinsics gcc copies every sum in every round, and spills some.
          __asm__ volatile("vpaddd %1, %0, %0" : "+v"(n.sum) : "v"(_mm512_popcnt_epi32(s)));
          __asm__ volatile("vpaddd %1, %0, %0" : "+v"(n.carry) : "v"(_mm512_popcnt_epi32(c)));
        }
      });
    });
    patches += 4;
    panel += 192;
  };
  triple(First<true>());
  for (std::int64_t k = 1; k < triples; ++k) triple(First<false>());
  rows.each([to](Row& row, int p) OVSW_INLINE_LAMBDA {
    row.each([to, p](Counts& n, int v) OVSW_INLINE_LAMBDA { to[2 * p + v] = add32(n.sum, add32(n.carry, n.carry)); });
  });
}

// From pixel i0 of the strip on.
template <int V, typename E>
__attribute__((noinline)) void finish_counts(const TargetOf<E>& t, const Scratch& w, const std::int32_t* shift,
                                             std::int64_t i0, std::int64_t pixel, int pixels, int c,
                                             const Vec* counts) {
  const std::int32_t *mult = w.mult + c, *window = w.window + c, *ones = w.ones ? w.ones + i0 : nullptr;
  finish<E>(t, shift, w.base + i0, pixel, pixels, c, V, counts, 2, [=](Vec count, int slab, int i) OVSW_INLINE_LAMBDA {
    const Vec sum = _mm512_mullo_epi32(count, load(mult + slab * kSlab));
    if (!E::kMore || !ones) return sum;
    return add32(sum, _mm512_mullo_epi32(all32(ones[i]), load(window + slab * kSlab)));
  });
}

// Slabs `slab` to slab + V - 1 of a strip.
template <int V, typename E>
void panel(const KernelArgs& args, const Layout& l, const Scratch& w, int slab, std::int64_t begin, std::int64_t end) {
  constexpr int kPixels = tile_pixels(V);
  const auto t = make_target<E>(args);
  const auto* weights = static_cast<const std::uint8_t*>(args.weights) + slab * l.triples * 192;
  for (std::int64_t first = begin; first < end; first += kBatch) {
    const int batch = end - first < kBatch ? int(end - first) : kBatch;
    const std::uint8_t* patches = w.patches + (first - begin) * l.stride;
    Vec counts[kBatch * 2];
    int i = 0;
    for (; i + kPixels <= batch; i += kPixels) {
      count<kPixels, V>(patches + i * l.stride, l.stride, weights, l.triples, counts + 2 * i);
    }
    for (; i < batch; ++i) count<1, V>(patches + i * l.stride, l.stride, weights, l.triples, counts + 2 * i);
    finish_counts<V, E>(t, w, args.constant<std::int32_t>(kShift), first - begin, first, batch, slab * kSlab, counts);
  }
}

template <typename E>
void run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Layout l(s);
  Scratch w = carve(s, l, scratch);
  using Factor = typename E::Factor;
  const auto twice = [](Factor x) OVSW_INLINE_LAMBDA { return 2 * std::uint32_t(x); };  // modulo 2^32
  const auto *scale = args.constant<Factor>(kScale), *window = args.constant<Factor>(kWindow);
  for (int c = args.first_channel; c < args.last_channel; ++c) w.mult[c] = std::int32_t(-twice(scale[c]));
  if (!window) w.ones = nullptr;
  for (int c = args.first_channel; window && c < args.last_channel; ++c) w.window[c] = std::int32_t(twice(window[c]));
  const int first_slab = args.first_channel / kSlab, last_slab = int(ceil_div(args.last_channel, kSlab));
  for_bands(s, l.pitch, begin, end, [&](std::int64_t band, std::int64_t band_end) OVSW_INLINE_LAMBDA {
    pad_bits(s, l, args.in.data, band, band_end, w.map);
    for (std::int64_t first = band; first < band_end; first += l.strip) {
      const std::int64_t last = band_end - first < l.strip ? band_end : first + l.strip;
      if (window) {
        prepare<true>(args, l, w, band, first, last);
      } else {
        prepare<false>(args, l, w, band, first, last);
      }
      for (int slab = first_slab; slab < last_slab; slab += 2) {
        if (last_slab - slab >= 2) {
          panel<2, E>(args, l, w, slab, first, last);
        } else {
          panel<1, E>(args, l, w, slab, first, last);
        }
      }
    }
  });
}

}  // namespace

std::size_t Bconv::packed_bytes(const Shape& s) {
  const Layout l(s);
  return std::size_t(l.slabs) * std::size_t(l.triples) * 192;
}

void Bconv::pack(const Shape& s, const void* weights, void* packed) {
  const Layout l(s);
  auto* out = static_cast<std::uint8_t*>(packed);
  std::memset(out, 0, packed_bytes(s));
  const std::int64_t size = s.window_h == 3 ? l.row_bytes : 4 * l.triples;
  for_weights(s, l, weights, [&](int c, std::int64_t at, std::uint8_t byte) {
    const std::int64_t part = at / size, i = at % size;
    std::uint8_t* to = out + (c / kSlab * l.triples + i / 4) * 192 + c % kSlab * 4 + i % 4;
    if (part < 2) to[part * 64] = byte;
    to[128] = std::uint8_t(to[128] ^ byte);
  });
}

std::size_t Bconv::scratch_bytes(const Shape& s) { return carve(s, Layout(s), nullptr).bytes; }

void Bconv::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (begin >= end) return;
  with_parts(args, [&](auto parts) { x86_avx512::run<decltype(parts)>(args, begin, end, scratch); });
}

}  // namespace ovsw::x86_avx512
