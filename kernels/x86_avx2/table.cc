// The table x86_avx2: which CPUs it is for, and its own kernels.

#include "kernels/portable/table.h"

#include "kernels/x86/kernels.h"
#include "kernels/x86_avx2/kernels.h"

namespace ovsw::x86_avx2 {
namespace {

bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt"); }

}  // namespace

const KernelTable kTable = make_table(10, supported,
                                      {
                                          {Numerics::kInteger, Core::kBconv, kernel<Bconv>()},
                                          {Numerics::kInteger, Core::kConvPixels, kernel<ConvPixels>()},
                                          {Numerics::kInteger, Core::kConv, kernel<x86::Conv>()},
                                          {Numerics::kInteger, Core::kLinear, kernel<x86::Linear>()},
                                      });

}  // namespace ovsw::x86_avx2
