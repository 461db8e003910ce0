// The kernels of this folder.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::arm_neon_dot {

struct ConvPixelsDot {
  OVSW_KERNEL;
};

struct ConvDot {
  OVSW_KERNEL;
};

}  // namespace ovsw::arm_neon_dot
