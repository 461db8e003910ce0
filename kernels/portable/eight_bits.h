// 8-bit weights come as 16-bit ones that are multiples of kUnit.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::portable {

constexpr int kUnit = 256;

inline bool eight_bits(const Shape& s, const void* weights) {
  const auto* w = static_cast<const std::int16_t*>(weights);
  for (std::int64_t i = 0; i < std::int64_t(s.window_h) * s.window_w * s.in_c * s.out_c; ++i) {
    if (w[i] % kUnit != 0) return false;
  }
  return true;
}

}  // namespace ovsw::OVSW_ISA::portable
