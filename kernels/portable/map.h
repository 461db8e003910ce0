// Kernels without weights: pools, channel padding, and the epilogue alone.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE {

void maxpool(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
void avgpool(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
void channel_pad(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
void eltwise(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t map_scratch_bytes(const Shape& s);

}  // namespace ovsw::OVSW_PORTABLE
