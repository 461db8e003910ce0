// The binary convolutions: patches are gathered as words, dots are xor + popcount.
//
// A patch is the input bits under one output pixel, laid out like the weights of one output channel: tap after tap,
// channels within a tap. Where C divides 64, 64 / C taps share a word (ResNet20's 16 channels: 9 taps in 3 words);
// otherwise every tap starts a new word. Taps outside the image stay zero; Border::base makes up for them.
//
// Weights are packed in panels of kLanes output channels, the same word of all of them side by side:
//     packed[panel][word][lane]
// so that the inner loop reads one patch word and kLanes consecutive weight words. It is 64-bit popcount on most CPUs,
// and becomes one vector xor, popcount and add where the instruction set has them.
//
// Groups are computed as separate convolutions on patches of their channels. Where a group is one channel (depthwise),
// 64 channels are counted together: plane b of a counter holds bit b of the counts of all 64, and adding one bit to
// each count is a ripple of AND and XOR through the planes.

#include "kernels/portable/epilogue.h"
#include "kernels/portable/kernels.h"
#include "kernels/portable/window.h"

namespace ovsw::OVSW_ISA::portable {
namespace {

constexpr int kLanes = 8;
constexpr int kPixels = 4;  // patches gathered together: for all but the first, a panel is read from the L1 cache

struct Layout {
  int taps;           // window_h * window_w
  int tap_words;      // words per pixel of the input
  int taps_per_word;  // 1 if a tap fills whole words
  int words;          // per patch and per output channel
  int panels;

  explicit Layout(const Shape& s)
      : taps(s.window_h * s.window_w),
        tap_words(ceil_div(s.in_c, kWordBits)),
        taps_per_word(kWordBits % s.in_c == 0 ? kWordBits / s.in_c : 1),
        words(taps_per_word > 1 ? ceil_div(taps, taps_per_word) : taps * tap_words),
        panels(ceil_div(s.out_c, kLanes)) {}
};

// fn(tap, the pixel under it) for every tap inside the image.
template <typename Fn>
OVSW_INLINE void each_tap(const Shape& s, int oy, int ox, Fn fn) {
  for (int ky = 0; ky < s.window_h; ++ky) {
    const int y = oy * s.stride_h - s.pad_h + ky * (s.gap_h + 1);
    if (y < 0 || y >= s.in_h) continue;
    for (int kx = 0; kx < s.window_w; ++kx) {
      const int x = ox * s.stride_w - s.pad_w + kx * (s.gap_w + 1);
      if (x >= 0 && x < s.in_w) fn(ky * s.window_w + kx, std::int64_t(y) * s.in_w + x);
    }
  }
}

// The patch of a group, whose channels begin at bit `first` of a pixel. l is the group's own layout.
OVSW_INLINE void gather_group(const Shape& s, const Layout& l, const std::uint64_t* in, int first, int oy, int ox,
                              std::uint64_t* patch) {
  for (int i = 0; i < l.words; ++i) patch[i] = 0;
  const int channels = s.group_in(), pixel_words = int(ceil_div(s.in_c, kWordBits)), shift = first % kWordBits;
  each_tap(s, oy, ox, [&](int tap, std::int64_t pixel) OVSW_INLINE_LAMBDA {
    const std::uint64_t* from = in + pixel * pixel_words;
    // Word w of the group's channels; bits past the last one are zero.
    const auto word = [&](int w) OVSW_INLINE_LAMBDA {
      const int at = first / kWordBits + w, left = channels - w * kWordBits;
      std::uint64_t x = from[at] >> shift;
      if (shift != 0 && at + 1 < pixel_words) x |= from[at + 1] << (kWordBits - shift);
      return left < kWordBits ? x & ((std::uint64_t(1) << left) - 1) : x;
    };
    if (l.taps_per_word > 1) {
      patch[tap / l.taps_per_word] |= word(0) << (tap % l.taps_per_word * channels);
    } else {
      for (int w = 0; w < l.tap_words; ++w) patch[std::int64_t(tap) * l.tap_words + w] = word(w);
    }
  });
}

// The patch under an output pixel, several taps to a word.
OVSW_INLINE void gather_joined(const Shape& s, const Layout& l, const std::uint64_t* in, int oy, int ox,
                               std::uint64_t* patch) {
  for (int i = 0; i < l.words; ++i) patch[i] = 0;
  const Window w = window(s, oy, ox);
  const int ky = w.y + s.pad_h - oy * s.stride_h, kx = w.x + s.pad_w - ox * s.stride_w;
  const auto per_word = unsigned(l.taps_per_word);
  for (int y = 0; y < w.rows; ++y) {
    const std::uint64_t* row = in + std::int64_t(w.y + y) * s.in_w + w.x;
    for (int x = 0; x < w.columns; ++x) {
      const auto tap = unsigned((ky + y) * s.window_w + kx + x);
      patch[tap / per_word] |= row[x] << (tap % per_word * unsigned(s.in_c));
    }
  }
}

// acc[lane] = -2 * popcount(patch xor panel)
OVSW_INLINE void dot(const std::uint64_t* patch, const std::uint64_t* panel, int words, int lanes, std::int32_t* acc) {
  std::uint64_t count[kLanes] = {};
  for (int k = 0; k < words; ++k) {
#if defined(__AVX512VPOPCNTDQ__)
#pragma omp simd
#endif
    for (int j = 0; j < kLanes; ++j) {
      count[j] += std::uint64_t(__builtin_popcountll(patch[k] ^ panel[k * kLanes + j]));
    }
  }
  for (int j = 0; j < lanes; ++j) acc[j] = -2 * std::int32_t(count[j]);
}

// One panel for all patches of a block.
OVSW_INLINE void dot_block(const std::uint64_t* patches, const std::uint64_t* panel, int words, int lanes, int pixels,
                           std::int32_t* acc, int out_c) {
  for (int p = 0; p < pixels; ++p) {
    const std::uint64_t* patch = patches + std::int64_t(p) * words;
    if (lanes == kLanes) {
      dot(patch, panel, words, kLanes, acc + p * out_c);
    } else {
      dot(patch, panel, words, lanes, acc + p * out_c);
    }
  }
}

// Scratch of a kernel: patches, and of each of kPixels pixels the sums and, for a window scale, the number of ones.
struct Room {
  std::uint64_t* patches;
  double* exact;  // of one pixel
  std::int32_t *acc, *ones;
  int words, channels;

  Room(void* scratch, int patch_words, int out_c) : words(patch_words), channels(out_c) {
    patches = static_cast<std::uint64_t*>(scratch);
    exact = reinterpret_cast<double*>(patches + std::int64_t(kPixels) * words);
    acc = reinterpret_cast<std::int32_t*>(exact + channels);
    ones = acc + kPixels * channels;
  }
  static std::size_t bytes(int words, int channels) {
    return std::size_t(kPixels) * std::size_t(words) * sizeof(std::uint64_t) +
           std::size_t(channels) * (sizeof(double) + 2 * kPixels * sizeof(std::int32_t));
  }
  std::uint64_t* patch(int p) const { return patches + std::int64_t(p) * words; }
  std::int32_t* sums(int p) const { return acc + std::int64_t(p) * channels; }
  std::int32_t* counts(int p) const { return ones + std::int64_t(p) * channels; }
};

// From the sums of a pixel to its outputs. Integer sums wrap around: with border terms, base and product may each
// overflow 32 bits although their difference does not.
template <Numerics N>
class Finish {
 public:
  explicit Finish(const KernelArgs& args) : args_(args), epilogue_(args), window(args.constants[kWindow]) {}

  // Channels [first, last) of `pixel`.
  OVSW_INLINE void operator()(const Room& room, int p, std::int64_t pixel, int first, int last) const {
    const Shape& s = args_.shape;
    const Border& border = args_.border;
    const std::int64_t border_class = border.row_class[int(pixel) / s.out_w] + border.col_class[int(pixel) % s.out_w];
    const std::int64_t at = border_class * padded_channels(s.out_c);
    std::int32_t* acc = room.sums(p);
    if constexpr (N == Numerics::kFloat) {
      for (int c = first; c < last; ++c) acc[c] += border.base[at + c];
      if (window || border.outside) {
        exact(acc, room.counts(p), border_class, first, last, room.exact);
        return finish_pixel_call(epilogue_, room.exact, pixel, first, last);
      }
    } else if (args_.wide) {
      add_base<std::int32_t>(acc, border.base + at, room.counts(p), first, last);
    } else {
      add_base<std::int16_t>(acc, border.base + at, room.counts(p), first, last);
    }
    finish_pixel_call(epilogue_, acc, pixel, first, last);
  }

 private:
  // T is the type of the scales.
  template <typename T>
  void add_base(std::int32_t* acc, const std::int32_t* base, const std::int32_t* ones, int first, int last) const {
    const auto wrap = [](std::int32_t x) OVSW_INLINE_LAMBDA { return std::uint32_t(x); };
    const auto* scale = args_.constant<T>(kScale);
    const auto* shift = args_.constant<std::int32_t>(kShift);
    if (window) {
      const auto* scale2 = static_cast<const T*>(window);
      for (int c = first; c < last; ++c)
        acc[c] = std::int32_t(wrap(acc[c]) * wrap(scale[c]) + 2 * wrap(scale2[c]) * wrap(ones[c]));
      for (int c = first; c < last; ++c) acc[c] = std::int32_t(wrap(base[c]) + wrap(acc[c])) >> shift[c];
    } else {
      for (int c = first; c < last; ++c)
        acc[c] = std::int32_t(wrap(base[c]) + wrap(acc[c]) * wrap(scale[c])) >> shift[c];
    }
  }

  // Dots with what taps outside add; with a window scale both products, in the order of docs/numerics.md.
  void exact(const std::int32_t* acc, const std::int32_t* ones, std::int64_t border_class, int first, int last,
             double* to) const {
    const Border& border = args_.border;
    const double* outside = border.outside + (border.outside ? border_class * padded_channels(args_.shape.out_c) : 0);
    for (int c = first; c < last; ++c) to[c] = border.outside ? double(acc[c]) + outside[c] : double(acc[c]);
    if (!window) return;
    const auto *scale = args_.constant<double>(kScale), *scale2 = static_cast<const double*>(window);
    const double inside = border.window[2 * border_class], rest = border.window[2 * border_class + 1];
    for (int c = first; c < last; ++c) to[c] = scale[c] * to[c] + scale2[c] * ((inside + 2 * ones[c]) + rest);
  }

  const KernelArgs& args_;
  const Epilogue<N> epilogue_;

 public:
  const void* const window;  // the window scale, null if there is none
};

std::int32_t popcount(const std::uint64_t* words, int count) {
  std::int32_t ones = 0;
  for (int i = 0; i < count; ++i) ones += __builtin_popcountll(words[i]);
  return ones;
}

// The channels [first, last) of `pixels` pixels, whose patches are there, from panels of weights for the channels from
// `panel_channel` on, up to `end`.
OVSW_INLINE void dot_panels(const Room& room, const Layout& l, const std::uint64_t* weights, int panel_channel, int end,
                            int first, int last, int pixels, bool counts_ones) {
  first = panel_channel + (first > panel_channel ? first - panel_channel : 0) / kLanes * kLanes;
  last = last < end ? last : end;
  for (int c = first; c < last; c += kLanes) {
    const int lanes = end - c < kLanes ? end - c : kLanes;
    const std::uint64_t* panel = weights + std::int64_t(c - panel_channel) * l.words;
    if (l.words == 9) {  // 3x3 over 64 channels: short enough for the loop to matter
      dot_block(room.patches, panel, 9, lanes, pixels, room.acc + c, room.channels);
    } else {
      dot_block(room.patches, panel, l.words, lanes, pixels, room.acc + c, room.channels);
    }
  }
  for (int p = 0; counts_ones && p < pixels; ++p) {
    const std::int32_t ones = popcount(room.patch(p), l.words);
    for (int c = first; c < last; ++c) room.counts(p)[c] = ones;
  }
}

template <Numerics N, bool Dilated>
void run_whole(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Layout l(s);
  const Room room(scratch, l.words, s.out_c);
  const Finish<N> finish(args);
  const auto* in = static_cast<const std::uint64_t*>(args.in.data);
  for (std::int64_t first = begin; first < end; first += kPixels) {
    const int pixels = end - first < kPixels ? int(end - first) : kPixels;
    for (int p = 0; p < pixels; ++p) {
      const int oy = int((first + p) / s.out_w), ox = int((first + p) % s.out_w);
      if (Dilated) {
        gather_group(s, l, in, 0, oy, ox, room.patch(p));
      } else if (l.taps_per_word > 1) {
        gather_joined(s, l, in, oy, ox, room.patch(p));
      } else {
        gather(s, in, l.tap_words, oy, ox, room.patch(p));
      }
    }
    dot_panels(room, l, static_cast<const std::uint64_t*>(args.weights), 0, s.out_c, args.first_channel,
               args.last_channel, pixels, finish.window);
    for (int p = 0; p < pixels; ++p) finish(room, p, first + p, args.first_channel, args.last_channel);
  }
}

// A group as a convolution of its own.
Shape one_group(const Shape& s) {
  Shape group = s;
  group.in_c = s.group_in();
  group.out_c = s.group_out();
  group.groups = 1;
  return group;
}

template <Numerics N>
void run_groups(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Layout l(one_group(s));
  const Room room(scratch, l.words, s.out_c);
  const Finish<N> finish(args);
  const auto* in = static_cast<const std::uint64_t*>(args.in.data);
  const std::int64_t group_words = std::int64_t(l.panels) * l.words * kLanes;
  const int size = s.group_out(), first_group = args.first_channel / size;
  const int last_group = int(ceil_div(args.last_channel, size));
  for (std::int64_t first = begin; first < end; first += kPixels) {
    const int pixels = end - first < kPixels ? int(end - first) : kPixels;
    for (int g = first_group; g < last_group; ++g) {
      for (int p = 0; p < pixels; ++p) {
        const int oy = int((first + p) / s.out_w), ox = int((first + p) % s.out_w);
        gather_group(s, l, in, g * s.group_in(), oy, ox, room.patch(p));
      }
      const auto* weights = static_cast<const std::uint64_t*>(args.weights) + g * group_words;
      dot_panels(room, l, weights, g * size, (g + 1) * size, args.first_channel, args.last_channel, pixels,
                 finish.window);
    }
    for (int p = 0; p < pixels; ++p) finish(room, p, first + p, args.first_channel, args.last_channel);
  }
}

// Byte i of entry b is bit i of b.
struct Spread {
  std::uint64_t bytes[256];

  constexpr Spread() : bytes() {
    for (unsigned b = 0; b < 256; ++b) {
      for (unsigned i = 0; i < 8; ++i) bytes[b] |= std::uint64_t(b >> i & 1) << (8 * i);
    }
  }
};
constexpr Spread kSpread;

// to[i] += factor * (how many of `taps` words have bit i), where word t is x[t * step] ^ w[t * step], w may be null.
void count_bits(const std::uint64_t* x, const std::uint64_t* w, std::int64_t step, int taps, int channels,
                std::int32_t factor, std::int32_t* to) {
  constexpr int kPlanes = 8, kMost = (1 << kPlanes) - 1;  // taps that the planes can count
  for (int t0 = 0; t0 < taps; t0 += kMost) {
    const int n = taps - t0 < kMost ? taps - t0 : kMost;
    std::uint64_t planes[kPlanes] = {};
    int used = 0;
    for (int t = 0; t < n; ++t) {
      const std::int64_t at = (t0 + t) * step;
      std::uint64_t carry = w ? x[at] ^ w[at] : x[at];
      used += t + 1 == 1 << used;  // counts may now need one more plane
      for (int b = 0; b < used; ++b) {
        const std::uint64_t both = planes[b] & carry;
        planes[b] ^= carry;
        carry = both;
      }
    }
    alignas(8) std::uint8_t counts[kWordBits];
    for (int i = 0; i < kWordBits / 8; ++i) {
      std::uint64_t bytes = 0;
      for (int b = 0; b < used; ++b) bytes += kSpread.bytes[planes[b] >> (8 * i) & 255] << b;
      std::memcpy(counts + 8 * i, &bytes, sizeof bytes);
    }
    if (channels == kWordBits) {
      for (int i = 0; i < kWordBits; ++i) to[i] += factor * counts[i];
    } else {
      for (int i = 0; i < channels; ++i) to[i] += factor * counts[i];
    }
  }
}

template <Numerics N>
void run_depthwise(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const int taps = s.window_h * s.window_w, words = int(ceil_div(s.in_c, kWordBits));
  const Room room(scratch, taps * words, s.out_c);
  const Finish<N> finish(args);
  const auto* in = static_cast<const std::uint64_t*>(args.in.data);
  const auto* weights = static_cast<const std::uint64_t*>(args.weights);
  const int first = args.first_channel, last = args.last_channel;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const int oy = int(pixel / s.out_w), ox = int(pixel % s.out_w);
    std::uint64_t* patch = room.patch(0);
    gather_any(s, in, words, oy, ox, patch);
    for (int c = first; c < last; ++c) room.acc[c] = room.ones[c] = 0;
    for (int c = first; c < last; c += kWordBits) {
      const int w = c / kWordBits, n = last - c < kWordBits ? last - c : kWordBits;
      count_bits(patch + w, weights + w, words, taps, n, -2, room.acc + c);
      if (finish.window) count_bits(patch + w, nullptr, words, taps, n, 1, room.ones + c);
    }
    finish(room, 0, pixel, first, last);
  }
}

}  // namespace

template <Numerics N>
std::size_t Bconv<N>::packed_bytes(const Shape& s) {
  const Layout l(s);
  return std::size_t(l.panels) * l.words * kLanes * sizeof(std::uint64_t);
}

template <Numerics N>
void Bconv<N>::pack(const Shape& s, const void* weights, void* packed) {
  const Layout l(s);
  auto* out = static_cast<std::uint64_t*>(packed);
  std::memset(out, 0, packed_bytes(s));
  const auto* words = static_cast<const std::uint64_t*>(weights);
  for (int c = 0; c < s.out_c; ++c) {
    std::uint64_t* panel = out + std::int64_t(c / kLanes) * l.words * kLanes + c % kLanes;
    for (int tap = 0; tap < l.taps; ++tap, words += l.tap_words) {
      if (l.taps_per_word > 1) {
        panel[tap / l.taps_per_word * kLanes] |= words[0] << (tap % l.taps_per_word * s.in_c);
      } else {
        for (int w = 0; w < l.tap_words; ++w) panel[(std::int64_t(tap) * l.tap_words + w) * kLanes] = words[w];
      }
    }
  }
}

template <Numerics N>
std::size_t Bconv<N>::scratch_bytes(const Shape& s) {
  return Room::bytes(Layout(s).words, s.out_c);
}

template <Numerics N>
void Bconv<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  run_whole<N, false>(args, begin, end, scratch);
}

template <Numerics N>
std::size_t BconvAny<N>::packed_bytes(const Shape& s) {
  if (is_depthwise(s)) {
    return std::size_t(s.window_h) * s.window_w * ceil_div(s.in_c, kWordBits) * sizeof(std::uint64_t);
  }
  return std::size_t(s.groups) * Bconv<N>::packed_bytes(one_group(s));
}

template <Numerics N>
void BconvAny<N>::pack(const Shape& s, const void* weights, void* packed) {
  const auto* from = static_cast<const std::uint64_t*>(weights);
  const std::int64_t taps = std::int64_t(s.window_h) * s.window_w;
  if (is_depthwise(s)) {  // [tap][word of channels]
    auto* to = static_cast<std::uint64_t*>(packed);
    const std::int64_t words = ceil_div(s.in_c, kWordBits);
    std::memset(packed, 0, packed_bytes(s));
    for (int c = 0; c < s.in_c; ++c) {
      for (std::int64_t tap = 0; tap < taps; ++tap) to[tap * words + c / kWordBits] |= *from++ << (c % kWordBits);
    }
    return;
  }
  const Shape group = one_group(s);
  const std::int64_t group_words = group.out_c * taps * ceil_div(group.in_c, kWordBits);
  const std::size_t bytes = Bconv<N>::packed_bytes(group);
  for (int g = 0; g < s.groups; ++g) {
    Bconv<N>::pack(group, from + g * group_words, static_cast<unsigned char*>(packed) + std::size_t(g) * bytes);
  }
}

template <Numerics N>
std::size_t BconvAny<N>::scratch_bytes(const Shape& s) {
  const int words =
      is_depthwise(s) ? int(s.window_h * s.window_w * ceil_div(s.in_c, kWordBits)) : Layout(one_group(s)).words;
  return Room::bytes(words, s.out_c);
}

template <Numerics N>
void BconvAny<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (is_depthwise(args.shape)) {
    run_depthwise<N>(args, begin, end, scratch);
  } else if (args.shape.groups == 1) {
    run_whole<N, true>(args, begin, end, scratch);
  } else {
    run_groups<N>(args, begin, end, scratch);
  }
}

template struct Bconv<Numerics::kFloat>;
template struct Bconv<Numerics::kInteger>;
template struct BconvAny<Numerics::kFloat>;
template struct BconvAny<Numerics::kInteger>;

}  // namespace ovsw::OVSW_ISA::portable
