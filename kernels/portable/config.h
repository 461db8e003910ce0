// The portable kernels are one set of plain C++ files, compiled once per instruction set that the compiler can use
// well by itself (see CMakeLists.txt): `portable` for every CPU, on x86 also `portable_avx2` and `portable_avx512`.
// Each copy lives in a namespace of its own, OVSW_PORTABLE, so that no inline function of one can replace another's at
// link time. For the same reason nothing here uses the C++ library beyond memcpy and memset. Floating-point
// contraction is off: every copy gives the same bytes.
#pragma once

#include <cstring>

#include "kernels/kernels.h"

#ifndef OVSW_PORTABLE
#define OVSW_PORTABLE portable
#endif

// Helpers and lambdas that must not become calls inside a hot loop.
#define OVSW_INLINE inline __attribute__((always_inline))
#define OVSW_INLINE_LAMBDA __attribute__((always_inline))

namespace ovsw::OVSW_PORTABLE {

constexpr int kWordBits = 64;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace ovsw::OVSW_PORTABLE
