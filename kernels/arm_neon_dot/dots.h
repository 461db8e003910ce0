// Text for loops of dot products; arm_neon/assembly.h has the rest of it.
#pragma once

#include "kernels/arm_neon/conv.h"

namespace ovsw::arm_neon_dot {

constexpr int kGroup = 4;  // bytes that one dot product takes
constexpr std::size_t kHeader = 64;

// Registers: pixel p in vp, weights in v8 and v9, sums of pixel p in %[ap] (channels 0-3) and %[bp] (4-7).
#define OVSW_DOTS(p, lane, op) \
  op " %[a" #p "].4s, v8.16b, v" #p ".4b[" #lane "]\n\t" op " %[b" #p "].4s, v9.16b, v" #p ".4b[" #lane "]\n\t"
#define OVSW_GROUP(P, lane, op) OVSW_LOAD_WW(8, 9) OVSW_EACH##P(OVSW_DOTS, lane, op)
#define OVSW_GROUPS4(P, op) \
  OVSW_PIXELS##P OVSW_GROUP(P, 0, op) OVSW_GROUP(P, 1, op) OVSW_GROUP(P, 2, op) OVSW_GROUP(P, 3, op)
#define OVSW_TIMES256(p, unused) \
  "shl %[a" #p "].4s, %[a" #p    \
  "].4s, #8\n\t"                 \
  "shl %[b" #p "].4s, %[b" #p "].4s, #8\n\t"

}  // namespace ovsw::arm_neon_dot
