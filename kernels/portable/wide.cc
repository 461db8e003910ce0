// All that follows the core of a wide op, for up to 64 channels of a pixel. In a file of its own, as in most networks
// no op is wide: the epilogue of the others stays small, and tables without portable kernels of their own share this
// one.

#include "kernels/portable/epilogue.h"
#include "kernels/portable/kernels.h"

namespace ovsw::OVSW_ISA::portable {

std::uint64_t wide_block(const KernelArgs& a, const std::int32_t* q, std::int64_t at, int c, int n) {
  std::int32_t changed[kWordBits];
  const std::int32_t* v = q;
  const auto each = [&](auto fn) OVSW_INLINE_LAMBDA {
    for (int j = 0; j < n; ++j) changed[j] = fn(v[j], j);
    v = changed;
  };
  const std::int64_t from = a.per_channel ? c : at;
  if (const auto* narrow = a.residual.as<const std::int16_t>(Element::kI16)) {
    each([=](std::int32_t x, int j) OVSW_INLINE_LAMBDA { return x + narrow[from + j]; });
  } else if (const auto* residual = a.residual.as<const std::int32_t>(Element::kI32)) {
    each([=](std::int32_t x, int j) OVSW_INLINE_LAMBDA { return x + residual[from + j]; });
  }
  const auto lo = std::int32_t(a.lo), hi = std::int32_t(a.hi);
  if (a.act == Act::kClamp) {
    each([=](std::int32_t x, int) OVSW_INLINE_LAMBDA { return x < lo ? lo : x > hi ? hi : x; });
  } else if (a.act == Act::kStep) {
    each([=](std::int32_t x, int) OVSW_INLINE_LAMBDA { return x >= 0 ? hi : lo; });
  } else if (a.act == Act::kPrelu) {
    const auto *slope = a.constant<std::int32_t>(kSlope) + c, *positive = a.constant<std::int32_t>(kPositive);
    each([=](std::int32_t x, int j) OVSW_INLINE_LAMBDA {
      const std::int32_t above = positive ? positive[c + j] : 1 << 30;  // which multiplies by 1
      return std::int32_t((std::int64_t(x) * (x >= 0 ? above : slope[j]) + (1 << 29)) >> 30);
    });
  }
  if (auto* out = a.out.as<std::int32_t>(Element::kI32)) std::memcpy(out + at, v, std::size_t(n) * sizeof *v);
  if (!a.bits) return 0;
  const auto* threshold = a.constant<std::int32_t>(kThreshold);
  return threshold ? signs_from(v, threshold + c, n) : signs(v, n);
}
std::uint64_t wide_block(const KernelArgs& a, const std::int16_t* q, std::int64_t at, int c, int n) {
  std::int32_t wide[kWordBits];
  for (int j = 0; j < n; ++j) wide[j] = q[j];
  return wide_block(a, wide, at, c, n);
}

}  // namespace ovsw::OVSW_ISA::portable
