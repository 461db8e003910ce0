// The binary convolution: patches are gathered as words, dots are xor + popcount, then the shared epilogue.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE {

void bconv(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t bconv_packed_bytes(const Shape& s);
void bconv_pack(const Shape& s, const std::uint64_t* weights, void* packed);
std::size_t bconv_scratch_bytes(const Shape& s);

}  // namespace ovsw::OVSW_PORTABLE
