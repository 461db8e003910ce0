// The integer kernels that all x86 tables share, written over a vector of either width.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::x86 {

// On the stream.
struct Conv {
  OVSW_KERNEL;
};

struct Linear {
  OVSW_KERNEL;
};

}  // namespace ovsw::OVSW_ISA::x86
