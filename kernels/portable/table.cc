// The portable table: what every other one falls back on, row by row.

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
