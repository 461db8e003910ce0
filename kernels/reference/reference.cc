#include "kernels/reference/reference.h"

namespace ovsw::reference {
namespace {

template <typename In, typename Out>
void naive(const Shape& s, const In* input, const In* weights, Out* output) {
  for (int oy = 0; oy < s.out_h; ++oy) {
    for (int ox = 0; ox < s.out_w; ++ox) {
      for (int oc = 0; oc < s.out_c; ++oc) {
        Out sum = 0;
        for (int ky = 0; ky < s.window_h; ++ky) {
          for (int kx = 0; kx < s.window_w; ++kx) {
            const int y = oy * s.stride_h + ky - s.pad_h;
            const int x = ox * s.stride_w + kx - s.pad_w;
            if (y < 0 || y >= s.in_h || x < 0 || x >= s.in_w) continue;
            for (int ic = 0; ic < s.in_c; ++ic) {
              const std::int64_t i = (std::int64_t(y) * s.in_w + x) * s.in_c + ic;
              const std::int64_t w = ((std::int64_t(oc) * s.window_h + ky) * s.window_w + kx) * s.in_c + ic;
              sum += Out(input[i]) * Out(weights[w]);
            }
          }
        }
        output[(std::int64_t(oy) * s.out_w + ox) * s.out_c + oc] = sum;
      }
    }
  }
}

}  // namespace

void bconv(const Shape& s, const std::int8_t* input, const std::int8_t* weights, std::int32_t* output) {
  naive(s, input, weights, output);
}

void conv(const Shape& s, const float* input, const float* weights, double* output) {
  naive(s, input, weights, output);
}

}  // namespace ovsw::reference
