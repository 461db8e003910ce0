// The portable kernels as a table.

#include "kernels/portable/table.h"

#include "kernels/portable/bconv.h"
#include "kernels/portable/conv.h"
#include "kernels/portable/map.h"

#define OVSW_STRING_(x) #x
#define OVSW_STRING(x) OVSW_STRING_(x)

namespace ovsw::OVSW_PORTABLE {
namespace {

bool supported() {
#if defined(__AVX512VPOPCNTDQ__)
  return __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
#elif defined(__POPCNT__)
  return __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("sse4.2");
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
};

}  // namespace ovsw::OVSW_PORTABLE
