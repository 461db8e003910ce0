// The portable kernels as a table.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE {

extern const KernelTable kTable;

}  // namespace ovsw::OVSW_PORTABLE
