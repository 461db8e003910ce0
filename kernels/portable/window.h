// The part of a window that lies inside the image.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::portable {

// That part of an output pixel's window; its first pixel is (y, x).
struct Window {
  int y, x, rows, columns;
};

OVSW_INLINE Window window(const Shape& s, int oy, int ox) {
  const int y0 = oy * s.stride_h - s.pad_h, x0 = ox * s.stride_w - s.pad_w;
  const int y1 = y0 + s.window_h, x1 = x0 + s.window_w;
  const int y = y0 < 0 ? 0 : y0, x = x0 < 0 ? 0 : x0;
  return {y, x, (y1 < s.in_h ? y1 : s.in_h) - y, (x1 < s.in_w ? x1 : s.in_w) - x};
}

inline bool dilated(const Shape& s) { return s.gap_h > 0 || s.gap_w > 0; }

inline bool is_depthwise(const Shape& s) { return s.group_in() == 1 && s.group_out() == 1; }

// The same with gaps between the taps: rows and columns of taps.
inline Window dilated_window(const Shape& s, int oy, int ox) {
  const auto first = [](int start, int step) { return start < 0 ? start + (step - 1 - start) / step * step : start; };
  const auto taps = [](int start, int at, int in, int window, int step) {
    const int inside = (in - at + step - 1) / step, left = window - (at - start) / step;
    return inside < left ? inside : left;
  };
  const int y0 = oy * s.stride_h - s.pad_h, x0 = ox * s.stride_w - s.pad_w;
  const int y = first(y0, s.gap_h + 1), x = first(x0, s.gap_w + 1);
  return {y, x, taps(y0, y, s.in_h, s.window_h, s.gap_h + 1), taps(x0, x, s.in_w, s.window_w, s.gap_w + 1)};
}

// The values under output pixel (oy, ox), `size` elements to an image pixel: tap after tap, zeros outside the image.
template <typename In, typename Out>
OVSW_INLINE void gather(const Shape& s, const In* in, std::int64_t size, int oy, int ox, Out* patch) {
  const int y0 = oy * s.stride_h - s.pad_h, x0 = ox * s.stride_w - s.pad_w;
  const int kx0 = x0 < 0 ? -x0 : 0;  // taps [kx0, kx1) of a row lie inside
  const int kx1 = x0 + s.window_w > s.in_w ? s.in_w - x0 : s.window_w;
  const std::int64_t row = s.window_w * size;
  for (int ky = 0; ky < s.window_h; ++ky, patch += row) {
    const int y = y0 + ky;
    const bool inside = y >= 0 && y < s.in_h && kx0 < kx1;
    const std::int64_t first = inside ? kx0 * size : row, last = inside ? kx1 * size : row;
    const In* from = in + (std::int64_t(y) * s.in_w + x0) * size;
    for (std::int64_t i = 0; i < first; ++i) patch[i] = 0;
    for (std::int64_t i = first; i < last; ++i) patch[i] = from[i];
    for (std::int64_t i = last; i < row; ++i) patch[i] = 0;
  }
}

// The same with gaps between the taps.
template <typename In, typename Out>
OVSW_INLINE void gather_dilated(const Shape& s, const In* in, std::int64_t size, int oy, int ox, Out* patch) {
  for (int ky = 0; ky < s.window_h; ++ky) {
    const int y = oy * s.stride_h - s.pad_h + ky * (s.gap_h + 1);
    for (int kx = 0; kx < s.window_w; ++kx, patch += size) {
      const int x = ox * s.stride_w - s.pad_w + kx * (s.gap_w + 1);
      if (y < 0 || y >= s.in_h || x < 0 || x >= s.in_w) {
        for (std::int64_t i = 0; i < size; ++i) patch[i] = 0;
      } else {
        const In* from = in + (std::int64_t(y) * s.in_w + x) * size;
        for (std::int64_t i = 0; i < size; ++i) patch[i] = from[i];
      }
    }
  }
}

// Either of them.
template <typename In, typename Out>
OVSW_INLINE void gather_any(const Shape& s, const In* in, std::int64_t size, int oy, int ox, Out* patch) {
  if (dilated(s)) {
    gather_dilated(s, in, size, oy, ox, patch);
  } else {
    gather(s, in, size, oy, ox, patch);
  }
}

}  // namespace ovsw::OVSW_ISA::portable
