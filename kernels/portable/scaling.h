// (scale * y + base) >> shift for the channels of a pixel, as average pooling and products of maps have it. It is done
// in double: products have at most 15 + 31 bits, so every operation is exact, and unlike 64-bit products and shifts
// these are vector instructions everywhere.
#pragma once

#include "kernels/portable/vectors.h"

namespace ovsw::OVSW_ISA::plain {

class Scaling {
 public:
  static std::size_t bytes(int channels) { return 3 * padded(channels) * sizeof(double); }

  // Keeps its constants in `room`, of that many bytes.
  Scaling(const KernelArgs& args, void* room) : channels_(padded(args.shape.out_c)) {
    scale_ = static_cast<double*>(room);
    base_ = scale_ + channels_;
    unit_ = base_ + channels_;
    std::memset(room, 0, bytes(args.shape.out_c));
    for (int c = 0; c < args.shape.out_c; ++c) {
      scale_[c] = args.constant<std::int16_t>(kScale)[c];
      base_[c] = args.border.base[c];
      const std::int64_t power = std::int64_t(1023 - args.constant<std::int32_t>(kShift)[c]) << 52;
      std::memcpy(unit_ + c, &power, sizeof power);
    }
  }

  // All channels, in place; y has padded() of them.
  OVSW_INLINE void apply(std::int32_t* y) const {
    for (std::size_t i = 0; i < channels_; i += kVector / sizeof(double)) {
      const auto wide = __builtin_convertvector(get<Ints>(y + i), Doubles);
      const Doubles x = (wide * get<Doubles>(scale_ + i) + get<Doubles>(base_ + i)) * get<Doubles>(unit_ + i);
      Ints q = __builtin_convertvector(x, Ints);  // towards zero
      q += __builtin_convertvector(__builtin_convertvector(q, Doubles) > x, Ints);
      std::memcpy(y + i, &q, sizeof q);
    }
  }

 private:
  std::size_t channels_;
  double *scale_, *base_, *unit_;
};

}  // namespace ovsw::OVSW_ISA::plain
