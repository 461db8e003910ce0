// The binary convolution in plain C++: patches are gathered as words, dots are xor + popcount.
//
// A patch is the input bits under one output pixel, laid out like the weights of one output channel: tap after tap,
// channels within a tap. Where C divides 64, 64 / C taps share a word (ResNet20's 16 channels: 9 taps in 3 words);
// otherwise every tap starts a new word. Taps outside the image stay zero; Border::base makes up for them.
//
// Weights are packed in panels of kLanes output channels, the same word of all of them side by side:
//     packed[panel][word][lane]
// so that the inner loop reads one patch word and kLanes consecutive weight words. It is 64-bit popcount on a plain
// CPU, and turns into one vector xor, popcount and add where the instruction set has them.

#include "kernels/portable/epilogue.h"
#include "kernels/portable/kernels.h"
#include "kernels/portable/window.h"

namespace ovsw::OVSW_ISA::plain {
namespace {

constexpr int kLanes = 8;
constexpr int kPixels = 4;  // patches gathered together, so that a panel is read from L1 for all but the first

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

// What the core's sums become before the epilogue: dots in float, q in integers. Sums of integers wrap around: with
// border terms, base and product may each leave 32 bits while their difference does not.
template <Numerics N>
OVSW_INLINE void add_base(const KernelArgs& args, const std::int32_t* base, std::int32_t* acc) {
  const auto wrap = [](std::int32_t x) OVSW_INLINE_LAMBDA { return std::uint32_t(x); };
  const auto* scale = args.constant<std::int16_t>(kScale);
  const auto* shift = args.constant<std::int32_t>(kShift);
  const int first = args.first_channel, last = args.last_channel;  // copies: acc might change those in memory
  for (int c = first; c < last; ++c) {
    if constexpr (N == Numerics::kFloat) {
      acc[c] += base[c];
    } else {
      acc[c] = std::int32_t(wrap(base[c]) + wrap(acc[c]) * wrap(scale[c])) >> shift[c];
    }
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
  const std::size_t patch = std::size_t(Layout(s).words) * sizeof(std::uint64_t);
  return kPixels * (patch + std::size_t(s.out_c) * sizeof(std::int32_t));
}

template <Numerics N>
void Bconv<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Layout l(s);
  const Epilogue<N> epilogue(args);
  const auto* in = static_cast<const std::uint64_t*>(args.in.data);
  const auto* weights = static_cast<const std::uint64_t*>(args.weights);
  auto* patches = static_cast<std::uint64_t*>(scratch);
  auto* acc = reinterpret_cast<std::int32_t*>(patches + std::int64_t(kPixels) * l.words);
  const int stride = padded_channels(s.out_c);

  for (std::int64_t first = begin; first < end; first += kPixels) {
    const int pixels = end - first < kPixels ? int(end - first) : kPixels;
    const std::int32_t* base[kPixels];
    for (int p = 0; p < pixels; ++p) {
      const int oy = int((first + p) / s.out_w), ox = int((first + p) % s.out_w);
      std::uint64_t* patch = patches + std::int64_t(p) * l.words;
      if (l.taps_per_word > 1) {
        gather_joined(s, l, in, oy, ox, patch);
      } else {
        gather(s, in, l.tap_words, oy, ox, patch);
      }
      base[p] = args.border.base + std::int64_t(args.border.row_class[oy] + args.border.col_class[ox]) * stride;
    }
    for (int c = args.first_channel; c < args.last_channel; c += kLanes) {
      const int lanes = s.out_c - c < kLanes ? s.out_c - c : kLanes;
      const std::uint64_t* panel = weights + std::int64_t(c) * l.words;
      if (l.words == 9) {  // 3x3 over 64 channels: short enough for the loop to matter
        dot_block(patches, panel, 9, lanes, pixels, acc + c, s.out_c);
      } else {
        dot_block(patches, panel, l.words, lanes, pixels, acc + c, s.out_c);
      }
    }
    for (int p = 0; p < pixels; ++p) {
      add_base<N>(args, base[p], acc + p * s.out_c);
      finish_pixel_call(epilogue, acc + p * s.out_c, first + p, args.first_channel, args.last_channel);
    }
  }
}

template struct Bconv<Numerics::kFloat>;
template struct Bconv<Numerics::kInteger>;

}  // namespace ovsw::OVSW_ISA::plain
