// The integer kernels (docs/numerics.md) written by hand for AVX-512 with VPOPCNTDQ and VNNI; the contract is
// IntKernels in kernels/kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace ovsw::x86_avx512 {

void int_bconv(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t int_bconv_packed_bytes(const Shape& s);
void int_bconv_pack(const Shape& s, const std::uint64_t* weights, void* packed);
std::size_t int_bconv_scratch_bytes(const Shape& s);

void int_conv_u8(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t int_conv_u8_packed_bytes(const Shape& s);
void int_conv_u8_pack(const Shape& s, const std::int16_t* weights, void* packed);
std::size_t int_conv_u8_scratch_bytes(const Shape& s);
extern const int kPixelCentre;  // 0: pixels are widened to 16 bits as they are

void int_conv_i16(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t int_conv_i16_packed_bytes(const Shape& s);
void int_conv_i16_pack(const Shape& s, const std::int16_t* weights, void* packed);
std::size_t int_conv_i16_scratch_bytes(const Shape& s);

void int_linear(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t int_linear_packed_bytes(const Shape& s);
void int_linear_pack(const Shape& s, const std::int16_t* weights, void* packed);

}  // namespace ovsw::x86_avx512
