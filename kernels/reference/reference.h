// The reference for kernel tests: naive loops over +1/-1 values that share no code and no bit trick with any kernel.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace ovsw::reference {

// input [in_h][in_w][in_c] and weights [out_c][window_h][window_w][in_c] hold +1 or -1;
// output [out_h][out_w][out_c] receives the dot over the taps that lie inside the image.
void bconv(const Shape& s, const std::int8_t* input, const std::int8_t* weights, std::int32_t* output);

// The same with real numbers, summed in double.
void conv(const Shape& s, const float* input, const float* weights, double* output);

}  // namespace ovsw::reference
