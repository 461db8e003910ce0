// Shared by the binary convolutions: sizes of patches in bytes, the padded copy of a map of bits, the order of the
// file's weights, and scratch.
#pragma once

#include "kernels/x86/padding.h"
#include "kernels/x86/vector.h"

namespace ovsw::OVSW_ISA::x86 {

struct BitMap {
  std::int64_t file_bytes;                         // of a pixel or a tap outside: whole words
  std::int64_t tap_bytes, row_bytes, patch_bytes;  // of a tap, a kernel row, a patch
  std::int64_t pitch;                              // bytes of a padded input row

  explicit BitMap(const Shape& s)
      : file_bytes(ceil_div(s.in_c, 64) * 8),
        tap_bytes(ceil_div(s.in_c, 8)),
        row_bytes(tap_bytes * s.window_w),
        patch_bytes(row_bytes * s.window_h),
        pitch(tap_bytes * (s.in_w + 2 * s.pad_w)) {}
};

// Copies n pixels of `bytes` each, one to a word, to places side by side. Where they are 2 or 4 bytes, a register of
// words at a time.
template <int Bytes>
OVSW_INLINE void copy_pixels(const std::uint8_t* from, int n, std::int64_t bytes, std::uint8_t* to) {
  const std::int64_t size = Bytes ? Bytes : bytes, word = 8 * ceil_div(size, 8);
  int i = 0;
  if constexpr (Bytes != 0) {
    constexpr int kWords = sizeof(Vec) / 8;
    for (; i + kWords <= n; i += kWords, from += sizeof(Vec), to += kWords * Bytes) narrow_words<Bytes>(load(from), to);
  }
  for (; i < n; ++i, from += word, to += size) std::memcpy(to, from, std::size_t(size));
}

// The input rows under output pixels [begin, end), tap_bytes per pixel.
static inline void pad_bits(const Shape& s, const BitMap& m, const void* in, std::int64_t begin, std::int64_t end,
                            std::uint8_t* padded) {
  const std::int64_t step = m.file_bytes;
  pad_map(s, in, step * s.in_w, begin, end, m.tap_bytes, padded,
          [&](const std::uint8_t* from, std::uint8_t* to) OVSW_INLINE_LAMBDA {
            if (m.tap_bytes == step) {
              std::memcpy(to, from, std::size_t(step * s.in_w));
            } else if (m.tap_bytes == 2) {
              copy_pixels<2>(from, s.in_w, 2, to);
            } else if (m.tap_bytes == 4) {
              copy_pixels<4>(from, s.in_w, 4, to);
            } else {
              copy_pixels<0>(from, s.in_w, m.tap_bytes, to);
            }
          });
}

// fn(output channel, place in its patch, byte) for all weights of the file.
template <typename Fn>
OVSW_INLINE void for_weights(const Shape& s, const BitMap& m, const void* weights, Fn fn) {
  const auto* tap = static_cast<const std::uint8_t*>(weights);
  for (int c = 0; c < s.out_c; ++c) {
    for (std::int64_t at = 0; at < m.patch_bytes; at += m.tap_bytes, tap += m.file_bytes) {
      for (std::int64_t i = 0; i < m.tap_bytes; ++i) fn(c, at + i, tap[i]);
    }
  }
}

// Divides the scratch into parts, each 64-byte aligned. With a null scratch it only counts the bytes.
class Carver {
 public:
  explicit Carver(void* scratch) : scratch_(static_cast<unsigned char*>(scratch)) {}

  template <typename T>
  T* take(std::int64_t count) {
    unsigned char* part = scratch_ ? scratch_ + bytes_ : nullptr;
    bytes_ += std::size_t(round_up(count * std::int64_t(sizeof(T)), 64));
    return reinterpret_cast<T*>(part);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  unsigned char* scratch_;
  std::size_t bytes_ = 0;
};

}  // namespace ovsw::OVSW_ISA::x86
