// The table arm_neon: every 64-bit ARM CPU has its instructions.

#include "kernels/portable/table.h"

#include "kernels/arm_neon/kernels.h"

namespace ovsw::arm_neon {

const KernelTable kTable = make_table(10, [] { return true; },
                                      {
                                          {Numerics::kInteger, Core::kBconv, kernel<neon::Bconv>()},
                                          {Numerics::kInteger, Core::kConvPixels, kernel<neon::ConvPixels>()},
                                          {Numerics::kInteger, Core::kConv, kernel<neon::Conv>()},
                                          {Numerics::kInteger, Core::kLinear, kernel<neon::Linear>()},
                                      });

}  // namespace ovsw::arm_neon
