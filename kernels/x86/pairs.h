// Weights of 16 bits for VPMADDWD and VPDPWSSD, which take them in pairs of inputs:
//     packed[panel of outputs][pair][output of the panel][2],  an odd last input's partner and missing outputs 0
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::x86 {

static inline std::size_t packed_pairs_bytes(int outputs, std::int64_t inputs, int panel) {
  return std::size_t(ceil_div(outputs, panel) * ceil_div(inputs, 2)) * panel * 2 * sizeof(std::int16_t);
}

static inline void pack_pairs(const void* weights, int outputs, std::int64_t inputs, int panel, void* packed) {
  const std::int64_t pairs = ceil_div(inputs, 2);
  const auto* from = static_cast<const std::int16_t*>(weights);
  std::memset(packed, 0, packed_pairs_bytes(outputs, inputs, panel));
  for (int c = 0; c < outputs; ++c) {
    std::int16_t* to = static_cast<std::int16_t*>(packed) + (c / panel * pairs * panel + c % panel) * 2;
    for (std::int64_t k = 0; k < inputs; ++k) to[k / 2 * panel * 2 + k % 2] = *from++;
  }
}

}  // namespace ovsw::OVSW_ISA::x86
