// The binary convolution by table lookup: AVX2 has no vector popcount, but VPSHUFB is a table of 16 bytes.
//
// For the nibbles a and b of two output pixels' patches at the same place, kPairs[a + 16 * b] holds
//     entry[w] = popcount(a xor w) + 16 * popcount(b xor w)
// so one VPSHUFB by the weight nibbles of 32 output channels does 2 pixels x 32 channels x 4 bits. Three such sums fit
// a byte as two nibbles, 3 * 4 <= 15. With x the sum of a group of three lookups, seen as 16-bit words
//     x = A0 + 16 * B0 + 256 * A1 + 4096 * B1          (pixels A, B; bytes 0, 1 of the word)
// every group does
//     low  += x & 0x0f0f      (bytes)                   A0 + 256 * A1
//     high += x >> 4          (words, modulo 2^16)      B0 + 16 * A1 + 256 * B1
// that is 9 operations for 3 * 256 MACs. `high` needs no mask, as A1 is known from `low` when the sums are taken out.
// Bytes hold kFlush groups, 12 * 21 = 252; then they are added to 16-bit sums in memory.
//
//     for a strip of pixel pairs: table offsets of their patches, 2 bytes per nibble
//       for a panel of up to 4 slabs of 32 channels, for a block of K that fits L1 with them
//         weights of the block, packed[slab][2 slots to a byte][32], to one nibble per byte
//         for the pairs: groups, flush; after the last block the epilogue
//
// Up to 16 output channels take half a register: there the 128-bit lanes hold different pixel pairs.
// Patches of more than kWide bits would overflow the 16-bit sums; they use 64-bit popcounts.

#include "kernels/x86/bits.h"
#include "kernels/x86/epilogue.h"
#include "kernels/x86_avx2/kernels.h"

namespace ovsw::x86_avx2 {
namespace {

using namespace x86;

constexpr int kSlab = 32;           // output channels to a register
constexpr int kMaxSlabs = 4;        // registers of a panel: 8 sums, 3 tables, 2 lookups, a mask
constexpr int kFlush = 20;          // groups between flushes: <= 21, and even as unpacking does two groups at a time
constexpr int kBlock = 3 * kFlush;  // groups of a block: 22.5 KiB of weights at 4 slabs
constexpr int kMaxPairs = 128;      // pixel pairs (quads, if lanes differ) of a strip
constexpr int kBatch = 8;           // of these for one call of the epilogue
constexpr std::int64_t kStripBytes = 256 << 10;
constexpr std::int64_t kWide = 32767;

struct Pairs {
  alignas(64) std::uint8_t entry[256][16];
  constexpr Pairs() : entry() {
    constexpr int kCount[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    for (int i = 0; i < 256; ++i) {
      for (int w = 0; w < 16; ++w) {
        entry[i][w] = std::uint8_t(kCount[(i & 15) ^ w] + 16 * kCount[(i >> 4) ^ w]);
      }
    }
  }
};
constexpr Pairs kPairs;

struct Layout : BitMap {
  std::int64_t groups;  // of three nibbles, even
  std::int64_t slots;   // nibbles with padding: 3 * groups
  std::int64_t stride;  // offsets per pixel pair: slots, and room for expand() to write whole vectors
  int slabs;
  int lanes;  // channels to a lane set: kSlab, or 16 with other pixels in the upper half
  int strip;  // pixel pairs, or quads
  bool wide;

  explicit Layout(const Shape& s) : BitMap(s) {
    groups = round_up(ceil_div(2 * patch_bytes, 3), 2);
    slots = 3 * groups;
    stride = round_up(slots, 32) + 32;
    lanes = s.out_c <= 16 ? 16 : kSlab;
    slabs = int(ceil_div(s.out_c, lanes));
    const std::int64_t pairs = kStripBytes / (stride * 2);
    strip = int(pairs < kBatch ? kBatch : pairs > kMaxPairs ? kMaxPairs : pairs);
    wide = std::int64_t(s.window_h) * s.window_w * s.in_c > kWide;
  }
};

// Constants of 16 channels.
struct Constants {
  std::int32_t mult[16];  // two 16-bit numbers: -mult twice; if E::kMore, -mult and the window scale
  std::int32_t shift[16];
  More more;
};

struct Scratch {
  std::uint8_t* map;          // the input rows under a band with their padding, tap_bytes per pixel
  const std::uint8_t** at;    // per pixel of the strip: its patch in the map
  const std::int32_t** base;  // and its base
  std::int32_t* ones;         // and how many of its bits are 1; made only if there is a window scale, else it meets 0
  std::uint16_t* offsets;     // [2 per register lane][strip][stride]
  std::uint8_t* weights;      // [group][slab of the panel][3][32]
  Vec* sums;                  // [pair of the strip][slab of the panel][4]
  Constants* constants;       // per 16 channels
  std::uint8_t* patch;        // wide patches only
  std::size_t bytes;
};

Scratch carve(const Shape& s, const Layout& l, void* scratch) {
  Scratch w{};
  Carver room(scratch);
  w.map = room.take<std::uint8_t>(l.pitch * band_rows(s, l.pitch) + 64);
  if (l.wide) {
    w.patch = room.take<std::uint8_t>(l.patch_bytes + 8);
  } else {
    w.at = room.take<const std::uint8_t*>(4 * l.strip + 4);
    w.base = room.take<const std::int32_t*>(4 * l.strip + 4);
    w.ones = room.take<std::int32_t>(4 * l.strip + 4);
    w.offsets = room.take<std::uint16_t>(2 * l.strip * l.stride);
    w.weights = room.take<std::uint8_t>(kBlock * kMaxSlabs * 3 * 32);
    w.sums = reinterpret_cast<Vec*>(room.take<std::uint8_t>(l.strip * kMaxSlabs * 4 * std::int64_t(sizeof(Vec))));
    w.constants = room.take<Constants>(ceil_div(s.out_c, 16));
  }
  w.bytes = room.bytes();
  return w;
}

// Which channel of a slab a byte of the weights belongs to. Sums come apart into even and odd bytes; each 16 of them,
// unpacked to 32 bits in two halves, are then channels 0-7 and 8-15 in order.
int channel_of_byte(int byte, int lanes) {
  const int odd = byte & 1;
  const int word = lanes == 16 ? (byte >> 1) + 8 * odd : byte >> 1;
  return (word & 3) + (word & 8 ? 4 : 0) + (word & 4 ? 8 : 0) + (lanes == 16 ? 0 : 16 * odd);
}

// Table indices, then offsets, of 8 or 16 bytes of two patches.
OVSW_INLINE void nibbles(__m128i a, __m128i b, __m128i* even, __m128i* odd) {
  const __m128i low = _mm_set1_epi8(15);
  *even = _mm_or_si128(_mm_and_si128(a, low), _mm_slli_epi16(_mm_and_si128(b, low), 4));
  *odd = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), low), _mm_andnot_si128(low, b));
}
OVSW_INLINE void put_offsets(__m128i index, std::uint16_t* to) {
  store(to, _mm256_slli_epi16(_mm256_cvtepu8_epi16(index), 4));
}
OVSW_INLINE void expand8(const std::uint8_t* a, const std::uint8_t* b, std::uint16_t* to) {
  __m128i even, odd;
  nibbles(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a)), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b)),
          &even, &odd);
  put_offsets(_mm_unpacklo_epi8(even, odd), to);
}
OVSW_INLINE void expand16(const std::uint8_t* a, const std::uint8_t* b, std::uint16_t* to) {
  __m128i even, odd;
  nibbles(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)), _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)),
          &even, &odd);
  put_offsets(_mm_unpacklo_epi8(even, odd), to);
  put_offsets(_mm_unpackhi_epi8(even, odd), to + 16);
}

// Offsets of two patches that start at a and b in the padded map. Rows are written one after another, each up to 30
// offsets too far; the padding at the end has to be zero.
template <int RowBytes>
OVSW_INLINE void expand(const Shape& s, const Layout& l, const std::uint8_t* a, const std::uint8_t* b,
                        std::uint16_t* to) {
  const std::int64_t row = RowBytes ? RowBytes : l.row_bytes;
  std::uint16_t* row_to = to;
  for (int ky = 0; ky < s.window_h; ++ky, a += l.pitch, b += l.pitch, row_to += 2 * row) {
    std::int64_t i = 0;
    for (; i + 8 < row; i += 16) expand16(a + i, b + i, row_to + 2 * i);
    if (i < row) expand8(a + i, b + i, row_to + 2 * i);
  }
  for (std::int64_t i = 2 * l.patch_bytes; i < l.slots; ++i) to[i] = 0;
}

// The ones of the patch that starts at `at` in the padded map.
template <int RowBytes>
OVSW_INLINE std::int32_t count_ones(const Shape& s, const Layout& l, const std::uint8_t* at) {
  const std::int64_t row = RowBytes ? RowBytes : l.row_bytes;
  const std::int64_t last = (row - 1) / 8 * 8;  // where a row's last word is
  const std::uint64_t mask = ~std::uint64_t(0) >> (8 * (last + 8 - row));
  std::int64_t count = 0;
  for (int ky = 0; ky < s.window_h; ++ky, at += l.pitch) {
    for (std::int64_t i = 0; i <= last; i += 8) {
      std::uint64_t word;
      std::memcpy(&word, at + i, sizeof word);
      count += __builtin_popcountll(i < last ? word : word & mask);
    }
  }
  return std::int32_t(count);
}

// Offsets, bases and, if there is a window scale, ones of a strip. Past the end pixels repeat the last one.
template <bool Quad, int RowBytes>
OVSW_INLINE void prepare(const KernelArgs& args, const Layout& l, const Scratch& w, std::int64_t begin,
                         std::int64_t first, std::int64_t last) {
  constexpr int kStep = Quad ? 4 : 2;
  const Shape& s = args.shape;
  const std::int64_t down = s.stride_h * l.pitch, right = s.stride_w * l.tap_bytes;
  const std::int64_t stride = padded_channels(s.out_c);
  int y = int(first / s.out_w), x = int(first % s.out_w);
  const std::uint8_t* row = w.map + (y - begin / s.out_w) * down;
  const std::uint8_t** at = w.at;
  const std::int32_t** base = w.base;
  for (std::int64_t left = last - first; left > 0; ++y, x = 0, row += down) {
    const std::int32_t* row_base = args.border.base + args.border.row_class[y] * stride;
    for (; x < s.out_w && left > 0; ++x, --left) {
      *at++ = row + x * right;
      *base++ = row_base + args.border.col_class[x] * stride;
    }
  }
  for (int i = 1; i < kStep; ++i, ++at, ++base) {
    *at = at[-1];
    *base = base[-1];
  }
  at = w.at;
  std::uint16_t* to = w.offsets;
  for (std::int64_t pixel = first; pixel < last; pixel += kStep, at += kStep, to += l.stride) {
    expand<RowBytes>(s, l, at[0], at[1], to);
    if constexpr (Quad) expand<RowBytes>(s, l, at[2], at[3], to + l.strip * l.stride);
  }
  if (!args.constants[kWindow]) return;
  for (std::int64_t i = 0; i < last - first; ++i) w.ones[i] = count_ones<RowBytes>(s, l, w.at[i]);
}

template <bool Quad>
void prepare(const KernelArgs& args, const Layout& l, const Scratch& w, std::int64_t begin, std::int64_t first,
             std::int64_t last) {
  switch (l.row_bytes) {  // 3x3 over 16, 32 and 64 channels: so little work that the loop matters
    case 6:
      return prepare<Quad, 6>(args, l, w, begin, first, last);
    case 12:
      return prepare<Quad, 12>(args, l, w, begin, first, last);
    case 24:
      return prepare<Quad, 24>(args, l, w, begin, first, last);
    default:
      return prepare<Quad, 0>(args, l, w, begin, first, last);
  }
}

// Weights of `groups` groups (even) of V slabs, `slab_bytes` apart: two nibbles per byte to one.
template <int V, int Lanes>
OVSW_INLINE void unpack(const std::uint8_t* packed, std::int64_t slab_bytes, int groups, std::uint8_t* to) {
  const Vec low = _mm256_set1_epi8(15);
  for (int v = 0; v < V; ++v) {
    const std::uint8_t* from = packed + v * slab_bytes;
    std::uint8_t* out = to + v * 96;
    for (int g = 0; g < groups; g += 2, out += 2 * V * 96) {
      for (int i = 0; i < 3; ++i, from += Lanes) {
        const Vec two = Lanes == kSlab
                            ? load(from)
                            : _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        const Vec pair[2] = {_mm256_and_si256(two, low), _mm256_and_si256(_mm256_srli_epi16(two, 4), low)};
        for (int j = 0; j < 2; ++j) {
          const int slot = 2 * i + j;
          store(out + slot / 3 * V * 96 + slot % 3 * 32, pair[j]);
        }
      }
    }
  }
}

// The running sums of one pixel pair x V slabs.
struct Sum {
  Vec low, high;
};
template <int V>
using Sums = List<Sum, V>;

template <int V>
OVSW_INLINE void add_group(Sums<V>& sums, Vec t0, Vec t1, Vec t2, const Vec* weights) {
  sums.each([&](Sum& sum, int v) OVSW_INLINE_LAMBDA {
    Vec x = _mm256_shuffle_epi8(t0, weights[3 * v]);
    x = _mm256_add_epi8(x, _mm256_shuffle_epi8(t1, weights[3 * v + 1]));
    x = _mm256_add_epi8(x, _mm256_shuffle_epi8(t2, weights[3 * v + 2]));
    // In place, and in this order: with intrinsics gcc copies every sum in every round, and at 4 slabs spills some.
    __asm__ volatile("vpaddb %1, %0, %0" : "+x"(sum.low) : "x"(_mm256_and_si256(x, _mm256_set1_epi8(15))));
    __asm__ volatile("vpaddw %1, %0, %0" : "+x"(sum.high) : "x"(_mm256_srli_epi16(x, 4)));
  });
}

// Even bytes are kept as the whole word and come out when 256 times the odd ones are taken off, once for all flushes.
template <bool First>
OVSW_INLINE void flush(const Sum& sum, Vec* to) {
  const Vec a1 = _mm256_srli_epi16(sum.low, 8);
  const Vec b = _mm256_sub_epi16(sum.high, _mm256_slli_epi16(a1, 4));
  const Vec b1 = _mm256_srli_epi16(b, 8);
  to[0] = First ? sum.low : _mm256_add_epi16(to[0], sum.low);
  to[1] = First ? a1 : _mm256_add_epi16(to[1], a1);
  to[2] = First ? b : _mm256_add_epi16(to[2], b);
  to[3] = First ? b1 : _mm256_add_epi16(to[3], b1);
}

OVSW_INLINE __m128i entry(std::uint16_t offset) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(reinterpret_cast<const char*>(kPairs.entry) + offset));
}

// The table of one pixel pair in both lanes; of a quad, one pair's in each, their offsets `quad` apart.
template <bool Quad>
OVSW_INLINE Vec table(const std::uint16_t* offsets, std::int64_t quad) {
  const __m128i first = entry(offsets[0]);
  return Quad ? _mm256_inserti128_si256(_mm256_castsi128_si256(first), entry(offsets[quad]), 1)
              : _mm256_broadcastsi128_si256(first);
}

// One pixel pair (or quad) x V slabs x `groups` groups. Not inlined, to have all registers.
template <int V, bool Quad, bool First>
__attribute__((noinline)) void lookup(const std::uint16_t* offsets, std::int64_t quad, const std::uint8_t* weights,
                                      int groups, Vec* to) {
  Sums<V> sums;
  sums.each([](Sum& sum, int) OVSW_INLINE_LAMBDA { sum.low = sum.high = zero(); });
  for (int g = 0; g < groups; g += 2, offsets += 6, weights += 2 * V * 96) {
    add_group(sums, table<Quad>(offsets, quad), table<Quad>(offsets + 1, quad), table<Quad>(offsets + 2, quad),
              reinterpret_cast<const Vec*>(weights));
    add_group(sums, table<Quad>(offsets + 3, quad), table<Quad>(offsets + 4, quad), table<Quad>(offsets + 5, quad),
              reinterpret_cast<const Vec*>(weights) + 3 * V);
  }
  sums.each([to](Sum& sum, int v) OVSW_INLINE_LAMBDA { flush<First>(sum, to + 4 * v); });
}

// 16 channels of one pixel, from c on, from their popcounts; `ones` has that of the patch alone, 16 or if wide 32 bits.
template <typename E>
OVSW_INLINE Vec finish_counts(const TargetOf<E>& t, std::int64_t at, int c, int n, const Constants& k,
                              const std::int32_t* base, Vec count, Vec ones) {
  if constexpr (E::kWide) {
    const auto sum = [&](int i, Vec counts) OVSW_INLINE_LAMBDA {
      Vec product = _mm256_mullo_epi32(counts, load(t.scale + i));
      if (t.window) product = _mm256_sub_epi32(product, _mm256_mullo_epi32(ones, load(t.window + i)));
      return _mm256_sub_epi32(load(base + i - c), add32(product, product));
    };
    const Vec sum0 = sum(c, _mm256_unpacklo_epi16(count, zero()));
    const Vec sum1 = sum(c + 8, _mm256_unpackhi_epi16(count, zero()));
    return finish16<E>(t, at, c, n, k.shift, k.more, sum0, sum1);
  }
  // (count, count) times (-mult, -mult), or twice (count, ones) times (-mult, window)
  const Vec other = E::kMore ? ones : count;
  Vec p0 = _mm256_madd_epi16(_mm256_unpacklo_epi16(count, other), load(k.mult));
  Vec p1 = _mm256_madd_epi16(_mm256_unpackhi_epi16(count, other), load(k.mult + 8));
  if constexpr (E::kMore) {
    p0 = add32(p0, p0);
    p1 = add32(p1, p1);
  }
  return finish16<E>(t, at, c, n, k.shift, k.more, add32(p0, load(base)), add32(p1, load(base + 8)));
}

// The ones of a pixel, as finish_counts takes them.
template <typename E>
OVSW_INLINE Vec all_ones(const std::int32_t* ones) {
  if constexpr (E::kWide) return all32(*ones);
  return E::kMore ? all16(*ones) : zero();
}

// `pixels` pixels x `slabs` slabs from channel c on; sums [pair][slab][4].
template <typename E>
__attribute__((noinline)) void finish_pairs(const TargetOf<E>& target, const Constants* constants,
                                            const std::int32_t* const* base, const std::int32_t* ones,
                                            std::int64_t pixel, int pixels, int c, int slabs, const Vec* sums) {
  const TargetOf<E> t = target;
  std::int64_t at = pixel * t.channels + c;
  unsigned char* bits = t.bits ? t.bits + pixel * t.bits_step : nullptr;
  for (int i = 0; i < pixels; ++i, at += t.channels) {
    const Constants* k = constants + c / 16;
    const std::int32_t* b = base[i] + c;
    const Vec* sum = sums + i / 2 * 4 * slabs + i % 2 * 2;
    const Vec one = all_ones<E>(ones + i);
    for (int v = 0; v < slabs; ++v, sum += 4, k += 2, b += kSlab) {
      const int n = t.channels - c - v * kSlab;
      const std::int64_t to = at + v * kSlab;
      const int first = E::kWide ? c + v * kSlab : 0;  // others need no channel
      const Vec odd = sum[1];
      const Vec even = _mm256_sub_epi16(sum[0], _mm256_slli_epi16(odd, 8));
      const Vec v0 = finish_counts<E>(t, to, first, n, k[0], b, even, one);
      const Vec v1 = n > 16 ? finish_counts<E>(t, to + 16, first + 16, n - 16, k[1], b + 16, odd, one) : v0;
      if (bits) put_bits32(bits, c + v * kSlab, n, v0, v1);
    }
    if (bits) bits += t.bits_step;
  }
}

// `pixels` pixels x 16 channels; sums [quad][4].
template <typename E>
__attribute__((noinline)) void finish_quads(const TargetOf<E>& target, const Constants* constants,
                                            const std::int32_t* const* base, const std::int32_t* ones,
                                            std::int64_t pixel, int pixels, const Vec* sums) {
  const TargetOf<E> t = target;
  const int n = t.channels;
  std::int64_t at = pixel * n;
  unsigned char* bits = t.bits ? t.bits + pixel * t.bits_step : nullptr;
  for (int first = 0; first < pixels; first += 4, sums += 4, base += 4, ones += 4) {
    Vec count[4];
    for (int i = 0; i < 2; ++i) {
      const Vec odd = sums[2 * i + 1];
      const Vec even = _mm256_sub_epi16(sums[2 * i], _mm256_slli_epi16(odd, 8));
      count[i] = _mm256_permute2x128_si256(even, odd, 0x20);
      count[i + 2] = _mm256_permute2x128_si256(even, odd, 0x31);
    }
    for (int i = 0; i < 4; ++i, at += n) {
      if (first + i == pixels) return;
      const Vec v = finish_counts<E>(t, at, 0, n, *constants, base[i], count[i], all_ones<E>(ones + i));
      if (bits) {
        put_bits16(bits, 0, n, v);
        bits += t.bits_step;
      }
    }
  }
}

// All pixels of a strip for the V slabs from `slab` on.
template <int V, bool Quad, typename E>
void panel(const KernelArgs& args, const Layout& l, const Scratch& w, int slab, std::int64_t begin, std::int64_t end,
           bool unpacked) {
  constexpr int kWidth = Quad ? 16 : kSlab, kStep = Quad ? 4 : 2;
  const auto t = make_target<E>(args);
  const std::int64_t slab_bytes = l.slots / 2 * kWidth;
  const auto* packed = static_cast<const std::uint8_t*>(args.weights) + slab * slab_bytes;
  const std::int64_t quad = l.strip * l.stride;
  for (std::int64_t g0 = 0; g0 < l.groups; g0 += kBlock) {
    const int groups = l.groups - g0 < kBlock ? int(l.groups - g0) : kBlock;
    const bool last = g0 + groups == l.groups;
    if (!unpacked) unpack<V, kWidth>(packed + g0 / 2 * 3 * kWidth, slab_bytes, groups, w.weights);
    const std::uint16_t* offsets = w.offsets + 3 * g0;
    Vec* sums = w.sums;
    const std::int32_t* const* base = w.base;
    const std::int32_t* ones = w.ones;
    for (std::int64_t pixel = begin; pixel < end; pixel += kBatch * kStep) {
      const int pixels = end - pixel < kBatch * kStep ? int(end - pixel) : kBatch * kStep;
      for (int i = 0; i < pixels; i += kStep, offsets += l.stride, sums += 4 * V) {
        for (int g = 0; g < groups; g += kFlush) {
          const int n = groups - g < kFlush ? groups - g : kFlush;
          if (g0 + g == 0) {
            lookup<V, Quad, true>(offsets, quad, w.weights, n, sums);
          } else {
            lookup<V, Quad, false>(offsets + 3 * g, quad, w.weights + g * V * 96, n, sums);
          }
        }
      }
      if (last) {
        const Vec* done = sums - ceil_div(pixels, kStep) * 4 * V;
        if constexpr (Quad) {
          finish_quads<E>(t, w.constants, base, ones, pixel, pixels, done);
        } else {
          finish_pairs<E>(t, w.constants, base, ones, pixel, pixels, slab * kSlab, V, done);
        }
      }
      if (l.groups <= kBlock) sums = w.sums;  // nothing to keep
      base += kBatch * kStep;
      ones += kBatch * kStep;
    }
  }
}

// Patches too long for 16-bit sums; weights as patches, one after another.
template <typename E>
void wide(const KernelArgs& args, const Layout& l, const Scratch& w, std::int64_t begin, std::int64_t end) {
  const Shape& s = args.shape;
  const auto t = make_target<E>(args);
  const auto* scale = args.constant<typename E::Factor>(kScale);
  const auto* window = args.constant<typename E::Factor>(kWindow);
  const auto* shift = args.constant<std::int32_t>(kShift);
  const std::int64_t words = ceil_div(l.patch_bytes, 8);
  const auto* weights = static_cast<const std::uint64_t*>(args.weights);
  std::memset(w.patch + (words - 1) * 8, 0, 8);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const std::int64_t y = pixel / s.out_w, x = pixel % s.out_w;
    const std::uint8_t* at = w.map + (y - begin / s.out_w) * s.stride_h * l.pitch + x * s.stride_w * l.tap_bytes;
    for (int ky = 0; ky < s.window_h; ++ky) {
      std::memcpy(w.patch + ky * l.row_bytes, at + ky * l.pitch, std::size_t(l.row_bytes));
    }
    const std::int32_t* base =
        args.border.base + std::int64_t(args.border.row_class[y] + args.border.col_class[x]) * padded_channels(s.out_c);
    const auto ones = std::uint32_t(window ? count_ones<0>(s, l, at) : 0);
    for (int c0 = args.first_channel; c0 < args.last_channel; c0 += 16) {
      alignas(32) std::int32_t sum[16] = {};
      for (int c = c0; c < c0 + 16 && c < s.out_c; ++c) {
        std::uint32_t count = 0;
        for (std::int64_t k = 0; k < words; ++k) {
          std::uint64_t word;
          std::memcpy(&word, w.patch + 8 * k, 8);
          count += std::uint32_t(__builtin_popcountll(word ^ weights[c * words + k]));
        }
        // Unsigned: base may have wrapped around, the sum has not.
        const std::uint32_t term = window ? 2 * ones * std::uint32_t(window[c]) : 0;
        sum[c - c0] = std::int32_t(std::uint32_t(base[c]) - 2 * count * std::uint32_t(scale[c]) + term);
      }
      const int n = s.out_c - c0;
      const Vec v =
          finish16<E>(t, pixel * s.out_c + c0, c0, n, shift + c0, more_at<E>(t, c0), load(sum), load(sum + 8));
      if (t.bits) put_bits16(t.bits + pixel * t.bits_step, c0, n, v);
    }
  }
}

// A strip after prepare(), panel by panel.
template <typename E>
void strip(const KernelArgs& args, const Layout& l, const Scratch& w, std::int64_t begin, std::int64_t end,
           bool unpacked) {
  if (l.lanes == 16) return panel<1, true, E>(args, l, w, 0, begin, end, unpacked);
  const int last = int(ceil_div(args.last_channel, kSlab));
  for (int slab = args.first_channel / kSlab; slab < last; slab += kMaxSlabs) {
    switch (last - slab) {
      case 1:
        panel<1, false, E>(args, l, w, slab, begin, end, unpacked);
        break;
      case 2:
        panel<2, false, E>(args, l, w, slab, begin, end, unpacked);
        break;
      case 3:
        panel<3, false, E>(args, l, w, slab, begin, end, unpacked);
        break;
      default:
        panel<4, false, E>(args, l, w, slab, begin, end, unpacked);
    }
  }
}

template <typename E>
void run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Layout l(s);
  const Scratch w = carve(s, l, scratch);
  if (l.wide) {
    return for_bands(s, l.pitch, begin, end, [&](std::int64_t band, std::int64_t band_end) OVSW_INLINE_LAMBDA {
      pad_bits(s, l, args.in.data, band, band_end, w.map);
      wide<E>(args, l, w, band, band_end);
    });
  }
  const auto* scale = args.constant<std::int16_t>(kScale);
  const auto* shift = args.constant<std::int32_t>(kShift);
  const auto* window = args.constant<std::int16_t>(kWindow);
  for (int c = args.first_channel; c < args.last_channel; ++c) {
    const auto mult = std::uint16_t(-scale[c]), other = E::kMore ? std::uint16_t(window ? window[c] : 0) : mult;
    if (!E::kWide) w.constants[c / 16].mult[c % 16] = std::int32_t(mult | std::uint32_t(other) << 16);
    w.constants[c / 16].shift[c % 16] = shift[c];
  }
  const auto t = make_target<E>(args);
  for (int c = args.first_channel; E::kMore && c < args.last_channel; c += 16)
    w.constants[c / 16].more = more_at<E>(t, c);
  const bool quads = l.lanes == 16, one_panel = args.last_channel - args.first_channel <= kMaxSlabs * kSlab;
  const std::int64_t pixels = std::int64_t(l.strip) * (quads ? 4 : 2);
  bool unpacked = false;
  for_bands(s, l.pitch, begin, end, [&](std::int64_t band, std::int64_t band_end) OVSW_INLINE_LAMBDA {
    pad_bits(s, l, args.in.data, band, band_end, w.map);
    for (std::int64_t first = band; first < band_end; first += pixels) {
      const std::int64_t last = band_end - first < pixels ? band_end : first + pixels;
      if (quads) {
        prepare<true>(args, l, w, band, first, last);
      } else {
        prepare<false>(args, l, w, band, first, last);
      }
      strip<E>(args, l, w, first, last, unpacked);
      unpacked = one_panel && l.groups <= kBlock;
    }
  });
}

}  // namespace

std::size_t Bconv::packed_bytes(const Shape& s) {
  const Layout l(s);
  if (l.wide) return std::size_t(s.out_c) * std::size_t(round_up(l.patch_bytes, 8));
  return std::size_t(l.slabs) * std::size_t(l.slots / 2 * l.lanes);
}

void Bconv::pack(const Shape& s, const void* weights, void* packed) {
  const Layout l(s);
  auto* out = static_cast<std::uint8_t*>(packed);
  std::memset(out, 0, packed_bytes(s));
  int byte_of_channel[kSlab];
  for (int byte = 0; byte < l.lanes; ++byte) byte_of_channel[channel_of_byte(byte, l.lanes)] = byte;
  for_weights(s, l, weights, [&](int c, std::int64_t at, std::uint8_t byte) {
    if (l.wide) {
      out[c * round_up(l.patch_bytes, 8) + at] = byte;
    } else {
      out[(c / l.lanes * (l.slots / 2) + at) * l.lanes + byte_of_channel[c % l.lanes]] = byte;
    }
  });
}

std::size_t Bconv::scratch_bytes(const Shape& s) { return carve(s, Layout(s), nullptr).bytes; }

void Bconv::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (begin >= end) return;
  with_parts(args, [&](auto parts) { x86_avx2::run<decltype(parts)>(args, begin, end, scratch); });
}

}  // namespace ovsw::x86_avx2
