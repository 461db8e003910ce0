// The portable table, from which every other table takes the kernels that it does not have.

#include "kernels/portable/table.h"

namespace ovsw::portable {
namespace {

bool supported() {
#if defined(__POPCNT__)
  return __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("sse4.2");
#else
  return true;
#endif
}

}  // namespace

const KernelTable kTable = portable_table(0, supported);

}  // namespace ovsw::portable
