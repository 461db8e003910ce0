// What the float and the integer binary convolution share: patches, packed weights and dots.
//
// A patch is the input bits under one output pixel, laid out like the weights of one output channel: tap after tap,
// channels within a tap. Where C divides 64, 64 / C taps share a word (ResNet20's 16 channels: 9 taps in 3 words);
// otherwise every tap starts a new word. Taps outside the image stay zero; Border::base makes up for them.
//
// Weights are packed in panels of kLanes output channels, the same word of all of them side by side:
//     packed[panel][word][lane]
// so that the inner loop reads one patch word and kLanes consecutive weight words. It is 64-bit popcount on a plain
// CPU, and turns into one vector xor, popcount and add where the instruction set has them.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE::patches {

constexpr int kLanes = 8;
constexpr int kPixels = 4;  // patches gathered together, so that a panel is read from L1 for all but the first

struct Layout {
  int taps;           // kernel_h * kernel_w
  int tap_words;      // words per pixel of the input
  int taps_per_word;  // 1 if a tap fills whole words
  int words;          // per patch and per output channel
  int panels;
};

static Layout layout(const Shape& s) {
  Layout l{};
  l.taps = s.kernel_h * s.kernel_w;
  l.tap_words = ceil_div(s.in_c, kWordBits);
  l.taps_per_word = kWordBits % s.in_c == 0 ? kWordBits / s.in_c : 1;
  l.words = l.taps_per_word > 1 ? ceil_div(l.taps, l.taps_per_word) : l.taps * l.tap_words;
  l.panels = ceil_div(s.out_c, kLanes);
  return l;
}

// The patch under output pixel (oy, ox). Taps that fill whole words lie side by side in the image as in the patch, so
// a kernel row is one copy; its ends outside the image, or all of it, are zero.
OVSW_INLINE void gather(const Shape& s, const Layout& l, const std::uint64_t* in, int oy, int ox,
                        std::uint64_t* patch) {
  const int y0 = oy * s.stride_h - s.pad_h;
  const int x0 = ox * s.stride_w - s.pad_w;
  const int kx0 = x0 < 0 ? -x0 : 0;  // taps [kx0, kx1) of a row lie inside
  const int kx1 = x0 + s.kernel_w > s.in_w ? s.in_w - x0 : s.kernel_w;
  if (l.taps_per_word > 1) {
    for (int i = 0; i < l.words; ++i) patch[i] = 0;
    for (int ky = 0; ky < s.kernel_h; ++ky) {
      const int y = y0 + ky;
      if (y < 0 || y >= s.in_h) continue;
      const std::int64_t row = std::int64_t(y) * s.in_w + x0;
      for (int kx = kx0; kx < kx1; ++kx) {
        const int tap = ky * s.kernel_w + kx;
        patch[tap / l.taps_per_word] |= in[row + kx] << (tap % l.taps_per_word * s.in_c);
      }
    }
    return;
  }
  for (int ky = 0; ky < s.kernel_h; ++ky, patch += std::int64_t(s.kernel_w) * l.tap_words) {
    const int y = y0 + ky;
    const bool inside = y >= 0 && y < s.in_h && kx0 < kx1;
    const int first = inside ? kx0 * l.tap_words : s.kernel_w * l.tap_words;
    const int last = inside ? kx1 * l.tap_words : s.kernel_w * l.tap_words;
    const std::int64_t row = (std::int64_t(y) * s.in_w + x0) * l.tap_words;
    for (int i = 0; i < first; ++i) patch[i] = 0;
    for (int i = first; i < last; ++i) patch[i] = in[row + i];
    for (int i = last; i < s.kernel_w * l.tap_words; ++i) patch[i] = 0;
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

static inline std::size_t packed_bytes(const Shape& s) {
  const Layout l = layout(s);
  return std::size_t(l.panels) * l.words * kLanes * sizeof(std::uint64_t);
}

static inline void pack(const Shape& s, const std::uint64_t* weights, void* packed) {
  const Layout l = layout(s);
  auto* out = static_cast<std::uint64_t*>(packed);
  std::memset(out, 0, packed_bytes(s));
  for (int c = 0; c < s.out_c; ++c) {
    std::uint64_t* panel = out + std::int64_t(c / kLanes) * l.words * kLanes + c % kLanes;
    for (int tap = 0; tap < l.taps; ++tap) {
      const std::uint64_t* words = weights + (std::int64_t(c) * l.taps + tap) * l.tap_words;
      if (l.taps_per_word > 1) {
        panel[tap / l.taps_per_word * kLanes] |= words[0] << (tap % l.taps_per_word * s.in_c);
      } else {
        for (int w = 0; w < l.tap_words; ++w) panel[(std::int64_t(tap) * l.tap_words + w) * kLanes] = words[w];
      }
    }
  }
}

static inline std::size_t scratch_bytes(const Shape& s) {
  const std::size_t patch = std::size_t(layout(s).words) * sizeof(std::uint64_t);
  return kPixels * (patch + std::size_t(s.out_c) * sizeof(std::int32_t));
}

// Calls finish(pixel, acc, base) for each output pixel of [begin, end): acc[c] = -2 * popcount, to which belongs
// base[c], for c in [first_channel, last_channel).
template <typename Finish>
OVSW_INLINE void for_dots(const Shape& s, const void* input, const void* packed, const Border& border, int base_stride,
                          std::int64_t begin, std::int64_t end, int first_channel, int last_channel, void* scratch,
                          Finish finish) {
  const Layout l = layout(s);
  const auto* in = static_cast<const std::uint64_t*>(input);
  const auto* weights = static_cast<const std::uint64_t*>(packed);
  auto* patches = static_cast<std::uint64_t*>(scratch);
  auto* acc = reinterpret_cast<std::int32_t*>(patches + std::int64_t(kPixels) * l.words);

  for (std::int64_t first = begin; first < end; first += kPixels) {
    const int pixels = end - first < kPixels ? int(end - first) : kPixels;
    const std::int32_t* base[kPixels];
    for (int p = 0; p < pixels; ++p) {
      const int oy = int((first + p) / s.out_w);
      const int ox = int((first + p) % s.out_w);
      gather(s, l, in, oy, ox, patches + std::int64_t(p) * l.words);
      base[p] = border.base + std::int64_t(border.row_class[oy] + border.col_class[ox]) * base_stride;
    }
    for (int c = first_channel; c < last_channel; c += kLanes) {
      const int lanes = s.out_c - c < kLanes ? s.out_c - c : kLanes;
      const std::uint64_t* panel = weights + std::int64_t(c) * l.words;
      if (l.words == 9) {  // 3x3 over 64 channels: short enough for the loop to matter
        dot_block(patches, panel, 9, lanes, pixels, acc + c, s.out_c);
      } else {
        dot_block(patches, panel, l.words, lanes, pixels, acc + c, s.out_c);
      }
    }
    for (int p = 0; p < pixels; ++p) finish(first + p, acc + p * s.out_c, base[p]);
  }
}

}  // namespace ovsw::OVSW_PORTABLE::patches
