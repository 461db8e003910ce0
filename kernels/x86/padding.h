// A copy of the input with zeros around it, so that later steps need not handle borders. It is made in bands: a band is
// as many rows of output pixels as need at most kBandBytes of padded rows, at least one. Most maps are one band.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::x86 {

constexpr std::int64_t kBandBytes = 2 << 20;

// Output rows of a band; `pitch` are the bytes of a padded row.
static inline std::int64_t band_height(const Shape& s, std::int64_t pitch) {
  const std::int64_t rows = kBandBytes / pitch, most = rows < s.window_h ? 1 : (rows - s.window_h) / s.stride_h + 1;
  return most < s.out_h ? most : s.out_h;
}

// Padded rows under a band.
static inline std::int64_t band_rows(const Shape& s, std::int64_t pitch) {
  return (band_height(s, pitch) - 1) * s.stride_h + s.window_h;
}

// fn(first, last) for the output pixels [begin, end), band by band.
template <typename Fn>
OVSW_INLINE void for_bands(const Shape& s, std::int64_t pitch, std::int64_t begin, std::int64_t end, Fn fn) {
  const std::int64_t height = band_height(s, pitch);
  while (begin < end) {
    const std::int64_t next = (begin / s.out_w + height) * s.out_w, last = next < end ? next : end;
    fn(begin, last);
    begin = last;
  }
}

// The input rows under output pixels [begin, end), of row_bytes each, to rows with pixel_bytes per pixel.
// copy(from, to) does the pixels of one row; what it writes after them is made zero or overwritten.
template <typename Copy>
OVSW_INLINE void pad_map(const Shape& s, const void* in, std::int64_t row_bytes, std::int64_t begin, std::int64_t end,
                         std::int64_t pixel_bytes, void* padded, Copy copy) {
  const int y0 = int(begin / s.out_w) * s.stride_h - s.pad_h;
  const int y1 = int((end - 1) / s.out_w) * s.stride_h - s.pad_h + s.window_h;
  const std::int64_t side = s.pad_w * pixel_bytes, pitch = (s.in_w + 2 * s.pad_w) * pixel_bytes;
  auto* to = static_cast<std::uint8_t*>(padded);
  for (int y = y0; y < y1; ++y, to += pitch) {
    if (y < 0 || y >= s.in_h) {
      std::memset(to, 0, std::size_t(pitch));
      continue;
    }
    std::memset(to, 0, std::size_t(side));
    copy(static_cast<const std::uint8_t*>(in) + y * row_bytes, to + side);
    std::memset(to + pitch - side, 0, std::size_t(side));
  }
}

}  // namespace ovsw::OVSW_ISA::x86
