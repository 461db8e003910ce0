// A table: the kernels of one namespace, wherever they are defined, and the CPUs that can run them.

#include "kernels/portable/table.h"

#include "kernels/portable/bconv.h"
#include "kernels/portable/conv.h"
#include "kernels/portable/integer.h"
#include "kernels/portable/map.h"

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define OVSW_STRING_(x) #x
#define OVSW_STRING(x) OVSW_STRING_(x)

namespace ovsw::OVSW_PORTABLE {
namespace {

// Whether this CPU has every instruction set that this copy was compiled for.
bool supported() {
#if defined(__AVX512VNNI__)
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vpopcntdq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
#elif defined(__POPCNT__)
  return __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("sse4.2");
#elif defined(__ARM_FEATURE_DOTPROD) && defined(__APPLE__)
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#elif defined(__ARM_FEATURE_DOTPROD) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;
#endif
}

}  // namespace

const KernelTable kTable = {
    OVSW_STRING(OVSW_PORTABLE),
    supported,
    bconv,
    conv,
    maxpool,
    avgpool,
    channel_pad,
    eltwise,
    bconv_packed_bytes,
    bconv_pack,
    conv_packed_bytes,
    conv_pack,
    bconv_scratch_bytes,
    conv_scratch_bytes,
    map_scratch_bytes,
    {
        int_bconv,
        int_conv_u8,
        int_conv_i16,
        int_linear,
        int_maxpool,
        int_avgpool,
        int_channel_pad,
        int_eltwise,
        int_bconv_packed_bytes,
        int_bconv_pack,
        int_conv_u8_packed_bytes,
        int_conv_u8_pack,
        int_conv_i16_packed_bytes,
        int_conv_i16_pack,
        int_linear_packed_bytes,
        int_linear_pack,
        int_bconv_scratch_bytes,
        int_conv_u8_scratch_bytes,
        int_conv_i16_scratch_bytes,
        int_map_scratch_bytes,
        &kPixelCentre,
    },
};

}  // namespace ovsw::OVSW_PORTABLE
