// The portable kernels are one set of plain C++ files, compiled once per kernel table (see CMakeLists.txt): as they are
// for `portable`, and with the flags of an instruction set for whatever its own folder does not write by hand. Each
// copy lives in a namespace of its own, OVSW_PORTABLE, the table's name, so that no inline function of one can replace
// another's at link time. For the same reason nothing here uses the C++ library beyond memcpy and memset.
// Floating-point contraction is off: every copy gives the same bytes.
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

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace ovsw::OVSW_PORTABLE
