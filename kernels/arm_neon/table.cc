// The table arm_neon: every 64-bit ARM CPU has its instructions.

#include "kernels/arm_neon/rows.h"

namespace ovsw::arm_neon {

const KernelTable kTable = make_table(10, [] { return true; }, neon::kRows);

}  // namespace ovsw::arm_neon
