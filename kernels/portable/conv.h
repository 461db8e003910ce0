// The real-valued convolution (stem, shortcuts, classifier) in float32.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE {

void conv(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t conv_packed_bytes(const Shape& s);
void conv_pack(const Shape& s, const float* weights, void* packed);
std::size_t conv_scratch_bytes(const Shape& s);

}  // namespace ovsw::OVSW_PORTABLE
