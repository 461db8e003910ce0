// The integer kernels for ARM, for the tables arm_neon (ARMv8.0) and arm_neon_dot, which has its own convolutions.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::neon {

struct Bconv {
  OVSW_KERNEL;
};

struct ConvPixels {
  OVSW_KERNEL;
};

struct Conv {
  OVSW_KERNEL;
};

struct Linear {
  OVSW_KERNEL;
};

}  // namespace ovsw::OVSW_ISA::neon
