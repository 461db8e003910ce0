// The table x86_avx512: which CPUs it is for, and its own kernels.

#include "kernels/portable/table.h"

#include "kernels/x86/kernels.h"
#include "kernels/x86_avx512/kernels.h"

namespace ovsw::x86_avx512 {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vpopcntdq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}

}  // namespace

const KernelTable kTable = make_table(20, supported,
                                      {
                                          {Numerics::kInteger, Core::kBconv, kernel<Bconv>()},
                                          {Numerics::kInteger, Core::kConvPixels, kernel<ConvPixels>()},
                                          {Numerics::kInteger, Core::kConv, kernel<x86::Conv>()},
                                          {Numerics::kInteger, Core::kLinear, kernel<x86::Linear>()},
                                      });

}  // namespace ovsw::x86_avx512
