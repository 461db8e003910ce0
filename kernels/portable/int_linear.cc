// The integer classifier in plain C++.

#include "kernels/portable/integer.h"

namespace ovsw::OVSW_PORTABLE {

std::size_t int_linear_packed_bytes(const Shape& s) { return std::size_t(s.out_c) * s.in_c * sizeof(std::int16_t); }

void int_linear_pack(const Shape& s, const std::int16_t* weights, void* packed) {
  std::memcpy(packed, weights, int_linear_packed_bytes(s));
}

void int_linear(const IntArgs& args, std::int64_t, std::int64_t, void*) {
  const Shape& s = args.shape;
  const auto* x = static_cast<const std::int16_t*>(args.in);
  const auto* weights = static_cast<const std::int16_t*>(args.weights) + std::int64_t(args.first_channel) * s.in_c;
  for (int c = args.first_channel; c < args.last_channel; ++c, weights += s.in_c) {
    std::int64_t sum = 0;
    for (int k = 0; k < s.in_c; ++k) sum += x[k] * weights[k];
    const int shift = args.shift[c];
    const std::int64_t rounding = shift ? std::int64_t(1) << (shift - 1) : 0;
    args.logits[c] = float(std::int32_t((sum + rounding) >> shift) + args.border.base[c]) * args.logit_scale;
  }
}

}  // namespace ovsw::OVSW_PORTABLE
