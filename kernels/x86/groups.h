// Weights for instructions that add the products of a group of inputs, 4 bytes of them, to a 32-bit sum: pairs of 16
// bits for VPMADDWD and VPDPWSSD, four bytes for VPDPBUSD.
//     packed[panel of outputs][group][output of the panel][input of the group],  0 where there is none
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::x86 {

template <typename Weight>
static inline std::size_t packed_groups_bytes(int outputs, std::int64_t inputs, int panel) {
  constexpr int kGroup = 4 / sizeof(Weight);
  return std::size_t(ceil_div(outputs, panel) * ceil_div(inputs, kGroup)) * std::size_t(panel) * 4;
}

// From 16 bits, each divided by `unit`.
template <typename Weight>
static inline void pack_groups(const void* weights, int outputs, std::int64_t inputs, int panel, int unit,
                               void* packed) {
  constexpr int kGroup = 4 / sizeof(Weight);
  const std::int64_t groups = ceil_div(inputs, kGroup);
  const auto* from = static_cast<const std::int16_t*>(weights);
  std::memset(packed, 0, packed_groups_bytes<Weight>(outputs, inputs, panel));
  for (int c = 0; c < outputs; ++c) {
    Weight* to = static_cast<Weight*>(packed) + (c / panel * groups * panel + c % panel) * kGroup;
    for (std::int64_t k = 0; k < inputs; ++k) to[k / kGroup * panel * kGroup + k % kGroup] = Weight(*from++ / unit);
  }
}

}  // namespace ovsw::OVSW_ISA::x86
