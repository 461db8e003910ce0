// The list of kernel tables in this build, best first. OVSW_BUILT_<NAME> says that a table was compiled.

#include "kernels/kernels.h"

namespace ovsw {

#define OVSW_DECLARE_TABLE(name)   \
  namespace name {                 \
  extern const KernelTable kTable; \
  }

OVSW_DECLARE_TABLE(portable)
#if defined(OVSW_BUILT_X86_AVX512)
OVSW_DECLARE_TABLE(x86_avx512)
#endif
#if defined(OVSW_BUILT_X86_AVX2)
OVSW_DECLARE_TABLE(x86_avx2)
#endif
#if defined(OVSW_BUILT_ARM_NEON_DOT)
OVSW_DECLARE_TABLE(arm_neon_dot)
#endif
#if defined(OVSW_BUILT_ARM_NEON)
OVSW_DECLARE_TABLE(arm_neon)
#endif

const KernelTable* const* kernel_tables(int* count) {
  static const KernelTable* const tables[] = {
#if defined(OVSW_BUILT_X86_AVX512)
      &x86_avx512::kTable,
#endif
#if defined(OVSW_BUILT_X86_AVX2)
      &x86_avx2::kTable,
#endif
#if defined(OVSW_BUILT_ARM_NEON_DOT)
      &arm_neon_dot::kTable,
#endif
#if defined(OVSW_BUILT_ARM_NEON)
      &arm_neon::kTable,
#endif
      &portable::kTable,
  };
  *count = int(sizeof tables / sizeof tables[0]);
  return tables;
}

}  // namespace ovsw
