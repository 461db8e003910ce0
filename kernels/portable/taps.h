// The taps of a window that lie inside the image.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE {

// Calls fn(pixel of the input, is_first) for the taps of an output pixel that lie inside the image.
template <typename T, typename Fn>
OVSW_INLINE void for_taps(const Shape& s, const T* in, std::int64_t pixel, Fn fn) {
  const int y0 = int(pixel / s.out_w) * s.stride_h - s.pad_h;
  const int x0 = int(pixel % s.out_w) * s.stride_w - s.pad_w;
  bool first = true;
  for (int y = y0; y < y0 + s.kernel_h; ++y) {
    if (y < 0 || y >= s.in_h) continue;
    for (int x = x0; x < x0 + s.kernel_w; ++x) {
      if (x < 0 || x >= s.in_w) continue;
      fn(in + (std::int64_t(y) * s.in_w + x) * s.in_c, first);
      first = false;
    }
  }
}

}  // namespace ovsw::OVSW_PORTABLE
