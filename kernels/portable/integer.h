// The integer kernels of a table (docs/numerics.md). Each is defined in plain C++ in this folder, or by hand in the
// folder of an instruction set, which then leaves out the plain file of that name.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE {

void int_bconv(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t int_bconv_packed_bytes(const Shape& s);
void int_bconv_pack(const Shape& s, const std::uint64_t* weights, void* packed);
std::size_t int_bconv_scratch_bytes(const Shape& s);

void int_conv_u8(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t int_conv_u8_packed_bytes(const Shape& s);
void int_conv_u8_pack(const Shape& s, const std::int16_t* weights, void* packed);
std::size_t int_conv_u8_scratch_bytes(const Shape& s);
extern const int kPixelCentre;

void int_conv_i16(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t int_conv_i16_packed_bytes(const Shape& s);
void int_conv_i16_pack(const Shape& s, const std::int16_t* weights, void* packed);
std::size_t int_conv_i16_scratch_bytes(const Shape& s);

void int_linear(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t int_linear_packed_bytes(const Shape& s);
void int_linear_pack(const Shape& s, const std::int16_t* weights, void* packed);

void int_maxpool(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
void int_avgpool(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
void int_channel_pad(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
void int_eltwise(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
std::size_t int_map_scratch_bytes(const Shape& s);

}  // namespace ovsw::OVSW_PORTABLE
