// The table arm_neon_dot: the kernels of arm_neon, and its own convolutions, for CPUs with dot products (ARMv8.2:
// Cortex-A76, Apple M1).

#include "kernels/portable/table.h"

#include "kernels/arm_neon/kernels.h"
#include "kernels/arm_neon_dot/kernels.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace ovsw::arm_neon_dot {
namespace {

bool supported() {
#if defined(__APPLE__)
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#elif defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

}  // namespace

const KernelTable kTable = make_table(20, supported,
                                      {
                                          {Numerics::kInteger, Core::kBconv, kernel<neon::Bconv>()},
                                          {Numerics::kInteger, Core::kConvPixels, kernel<ConvPixelsDot>()},
                                          {Numerics::kInteger, Core::kConv, kernel<ConvDot>()},
                                          {Numerics::kInteger, Core::kLinear, kernel<neon::Linear>()},
                                      });

}  // namespace ovsw::arm_neon_dot
