// The taps of a window that lie inside the image.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE {

// The part of an output pixel's window that lies inside the image; its first pixel is (y, x).
struct Window {
  int y, x, rows, columns;
};

OVSW_INLINE Window window(const Shape& s, std::int64_t pixel) {
  const int y0 = int(pixel / s.out_w) * s.stride_h - s.pad_h, x0 = int(pixel % s.out_w) * s.stride_w - s.pad_w;
  const int y1 = y0 + s.kernel_h, x1 = x0 + s.kernel_w;
  const int y = y0 < 0 ? 0 : y0, x = x0 < 0 ? 0 : x0;
  return {y, x, (y1 < s.in_h ? y1 : s.in_h) - y, (x1 < s.in_w ? x1 : s.in_w) - x};
}

// Calls fn(pixel of the input, is_first) for its taps.
template <typename T, typename Fn>
OVSW_INLINE void for_taps(const Shape& s, const T* in, std::int64_t pixel, Fn fn) {
  const Window w = window(s, pixel);
  const T* row = in + (std::int64_t(w.y) * s.in_w + w.x) * s.in_c;
  for (int y = 0; y < w.rows; ++y, row += std::int64_t(s.in_w) * s.in_c) {
    for (int x = 0; x < w.columns; ++x) fn(row + std::int64_t(x) * s.in_c, x + y == 0);
  }
}

}  // namespace ovsw::OVSW_PORTABLE
