// The kernels of this folder.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::x86_avx2 {

struct Bconv {
  OVSW_KERNEL;
};

struct ConvPixels {
  OVSW_KERNEL;
};

}  // namespace ovsw::x86_avx2
