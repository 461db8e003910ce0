// The rows of the ARM tables, which differ in what their files are compiled for.
#pragma once

#include "kernels/arm_neon/kernels.h"
#include "kernels/portable/table.h"

namespace ovsw::OVSW_ISA::neon {

constexpr Row kRows[] = {
    {Numerics::kInteger, Core::kBconv, kernel<Bconv>()},
    {Numerics::kInteger, Core::kConvPixels, kernel<ConvPixels>()},
    {Numerics::kInteger, Core::kConv, kernel<Conv>()},
    {Numerics::kInteger, Core::kLinear, kernel<Linear>()},
};

}  // namespace ovsw::OVSW_ISA::neon
