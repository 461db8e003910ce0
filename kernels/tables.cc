// The list of kernel tables in this build, best first. OVSW_BUILT_<NAME> says that a table was compiled.

#include "kernels/kernels.h"

namespace ovsw {

#define OVSW_DECLARE_TABLE(name)   \
  namespace name {                 \
  extern const KernelTable kTable; \
  }

OVSW_DECLARE_TABLE(portable)
#if defined(OVSW_BUILT_PORTABLE_AVX2)
OVSW_DECLARE_TABLE(portable_avx2)
#endif
#if defined(OVSW_BUILT_PORTABLE_AVX512)
OVSW_DECLARE_TABLE(portable_avx512)
#endif

const KernelTable* const* kernel_tables(int* count) {
  static const KernelTable* const tables[] = {
#if defined(OVSW_BUILT_PORTABLE_AVX512)
      &portable_avx512::kTable,
#endif
#if defined(OVSW_BUILT_PORTABLE_AVX2)
      &portable_avx2::kTable,
#endif
      &portable::kTable,
  };
  *count = int(sizeof tables / sizeof tables[0]);
  return tables;
}

}  // namespace ovsw
