// What every kernel file begins with. The portable kernels are one set of plain C++ files, compiled once per kernel
// table (see CMakeLists.txt) with the flags of its instruction set, for whatever that one's folder does not write
// itself. Each copy lives in a namespace of its own, OVSW_ISA, the table's name, so that no inline function of one can
// replace another's at link time. For the same reason no kernel uses the C++ library beyond memcpy and memset.
// Floating-point contraction is off: every copy gives the same bytes.
#pragma once

#include <cstring>

#include "kernels/kernels.h"

#ifndef OVSW_ISA
#define OVSW_ISA portable
#endif

// The table whose copy of the portable kernels this one has: its own, or one that is compiled no differently.
#ifndef OVSW_PLAIN
#define OVSW_PLAIN OVSW_ISA
#endif

// Helpers and lambdas that must not become calls inside a hot loop.
#define OVSW_INLINE inline __attribute__((always_inline))
#define OVSW_INLINE_LAMBDA __attribute__((always_inline))

// A function that stays one: gcc makes copies for callers with constant arguments.
#if defined(__clang__)
#define OVSW_ONE_COPY __attribute__((noinline))
#else
#define OVSW_ONE_COPY __attribute__((noinline, noclone))
#endif

// The functions of a kernel with weights, inside a struct of its name; kernel<Name>() is its row.
#define OVSW_KERNEL                                                                             \
  static void run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch); \
  static std::size_t packed_bytes(const Shape& s);                                              \
  static void pack(const Shape& s, const void* weights, void* packed);                          \
  static std::size_t scratch_bytes(const Shape& s)

namespace ovsw::OVSW_ISA {

constexpr int kWordBits = 64;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

static constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

}  // namespace ovsw::OVSW_ISA
