// The integer classifier.

#include "kernels/portable/kernels.h"

namespace ovsw::OVSW_ISA::portable {

std::size_t Linear::packed_bytes(const Shape& s) { return std::size_t(s.out_c) * s.in_c * sizeof(std::int16_t); }

void Linear::pack(const Shape& s, const void* weights, void* packed) { std::memcpy(packed, weights, packed_bytes(s)); }

std::size_t Linear::scratch_bytes(const Shape&) { return 0; }

void Linear::run(const KernelArgs& args, std::int64_t, std::int64_t, void*) {
  const Shape& s = args.shape;
  const auto* x = static_cast<const std::int16_t*>(args.in.data);
  const auto* weights = static_cast<const std::int16_t*>(args.weights) + std::int64_t(args.first_channel) * s.in_c;
  for (int c = args.first_channel; c < args.last_channel; ++c, weights += s.in_c) {
    std::int64_t sum = 0;
    for (int k = 0; k < s.in_c; ++k) sum += x[k] * weights[k];
    const int shift = args.constant<std::int32_t>(kShift)[c];
    const std::int64_t rounding = shift ? std::int64_t(1) << (shift - 1) : 0;
    const auto q = std::int32_t((sum + rounding) >> shift) + args.border.base[c];
    static_cast<float*>(args.out.data)[c] = float(q) * *args.constant<float>(kScale);
  }
}

}  // namespace ovsw::OVSW_ISA::portable
