// (scale * y + base) >> shift for the channels of a pixel, for average pooling and products of maps.
//
// Common powers of two are removed first: an average over 2x2 pixels is then a sum and a shift. If everything fits, it
// is computed in 32 bits, otherwise in double: products have at most 15 + 31 bits, so every operation is exact, and
// unlike 64-bit products and shifts these are vector instructions everywhere.
#pragma once

#include "kernels/portable/vectors.h"

namespace ovsw::OVSW_ISA::portable {

class Scaling {
 public:
  static std::size_t bytes(int channels) { return 3 * padded(channels) * sizeof(double); }

  // For |y| <= most. Keeps its constants in `room`, which has bytes() bytes.
  Scaling(const KernelArgs& args, std::int64_t most, void* room) : channels_(padded(args.shape.out_c)), narrow_(true) {
    scale_ = static_cast<double*>(room);
    base_ = scale_ + channels_;
    unit_ = base_ + channels_;
    for (int c = 0; c < args.shape.out_c; ++c) {
      const Constants k(args, c);
      const std::int64_t scale = k.scale < 0 ? -k.scale : k.scale, base = k.base < 0 ? -k.base : k.base;
      narrow_ = narrow_ && scale * most + base <= 0x7fffffff;
    }
    std::memset(room, 0, bytes(args.shape.out_c));
    for (int c = 0; c < args.shape.out_c; ++c) {
      const Constants k(args, c);
      if (narrow_) {
        reinterpret_cast<std::int32_t*>(scale_)[c] = std::int32_t(k.scale);
        reinterpret_cast<std::int32_t*>(base_)[c] = std::int32_t(k.base);
        reinterpret_cast<std::int32_t*>(unit_)[c] = k.shift < 31 ? k.shift : 31;
      } else {
        scale_[c] = double(k.scale);
        base_[c] = double(k.base);
        const std::int64_t power = std::int64_t(1023 - k.shift) << 52;
        std::memcpy(unit_ + c, &power, sizeof power);
      }
    }
  }

  bool narrow() const { return narrow_; }

  // A vector of channels from c on, if narrow.
  OVSW_INLINE Wide of(Wide y, std::size_t c) const {
    const auto at = [c](const double* row)
                        OVSW_INLINE_LAMBDA { return get<Wide>(reinterpret_cast<const std::int32_t*>(row) + c); };
    return (y * at(scale_) + at(base_)) >> at(unit_);
  }

  // All channels, in place; y has padded() of them.
  OVSW_INLINE void apply(std::int32_t* y) const {
    if (narrow_) {
      for (std::size_t i = 0; i < channels_; i += kVector / sizeof(std::int32_t)) {
        const Wide q = of(get<Wide>(y + i), i);
        std::memcpy(y + i, &q, sizeof q);
      }
      return;
    }
    for (std::size_t i = 0; i < channels_; i += kVector / sizeof(double)) {
      const auto wide = __builtin_convertvector(get<Ints>(y + i), Doubles);
      const Doubles x = (wide * get<Doubles>(scale_ + i) + get<Doubles>(base_ + i)) * get<Doubles>(unit_ + i);
      Ints q = __builtin_convertvector(x, Ints);  // towards zero
      q += __builtin_convertvector(__builtin_convertvector(q, Doubles) > x, Ints);
      std::memcpy(y + i, &q, sizeof q);
    }
  }

 private:
  // Per-channel constants with the common power of two removed.
  struct Constants {
    std::int64_t scale, base;
    std::int32_t shift;

    Constants(const KernelArgs& args, int c)
        : scale(args.constant<std::int16_t>(kScale)[c]),
          base(args.border.base[c]),
          shift(args.constant<std::int32_t>(kShift)[c]) {
      if ((scale | base) == 0) return;
      const int common = __builtin_ctzll(std::uint64_t(scale | base)), taken = common < shift ? common : shift;
      scale >>= taken;
      base >>= taken;
      shift -= taken;
    }
  };

  std::size_t channels_;
  bool narrow_;
  double *scale_, *base_, *unit_;  // in 32 bits if narrow_
};

}  // namespace ovsw::OVSW_ISA::portable
