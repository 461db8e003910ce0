// Included by every kernel file. The portable kernels are one set of C++ files without intrinsics, compiled once per
// kernel table (see CMakeLists.txt) with the flags of its instruction set; a table uses them for all kernels that its
// folder does not have. Each copy is in a namespace of its own, named after the table (OVSW_ISA), so that the linker
// cannot replace an inline function of one table by another's. For the same reason kernels use nothing of the C++
// library but memcpy and memset. Floating-point contraction is off: every copy gives the same bytes.
#pragma once

#include <cstring>

#include "kernels/kernels.h"

#ifndef OVSW_ISA
#define OVSW_ISA portable
#endif

// The table whose copy of the portable kernels this one uses: its own, or one that is compiled in the same way.
#ifndef OVSW_PORTABLE
#define OVSW_PORTABLE OVSW_ISA
#endif

// Helpers and lambdas that must not become calls inside a hot loop.
#define OVSW_INLINE inline __attribute__((always_inline))
#define OVSW_INLINE_LAMBDA __attribute__((always_inline))

// A function that must not be cloned: gcc makes copies for callers with constant arguments.
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
