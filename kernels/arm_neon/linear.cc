// The integer classifier for ARM: 8 classes at a time, exact sums in 64 bits.
//
// Products of 16 bits are added in twos to 32-bit sums (SMULL, SMLAL2), and pairs of these to 64-bit sums (SADALP). Two
// products overflow 32 bits only if all four factors are -32768, so if any weight is -32768, products are not paired.
//     packed[8 classes][16 features][class][feature], after a header that says which
// The sums end with SRSHL, whose rounding is that of docs/numerics.md.

#include "kernels/arm_neon/common.h"

namespace ovsw::OVSW_ISA::neon {
namespace {

constexpr int kBlock = 16;  // features
constexpr std::size_t kHeader = 64;

int blocks_of(const Shape& s) { return ceil_div(s.in_c, kBlock); }

template <bool kPairs>
OVSW_INLINE int64x2_t add_products(int64x2_t sum, int16x8_t x, int16x8_t w) {
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(w));
  if constexpr (kPairs) return vpadalq_s32(sum, vmlal_high_s16(low, x, w));
  return vpadalq_s32(vpadalq_s32(sum, low), vmull_high_s16(x, w));
}

template <bool kPairs>
void linear(const KernelArgs& args, const std::int16_t* w) {
  const Shape& s = args.shape;
  const int blocks = blocks_of(s);
  w += std::size_t(args.first_channel) * blocks * kBlock;
  for (int c = args.first_channel; c < args.last_channel; c += kPanel) {
    int64x2_t sum[kPanel];
    Unroll<kPanel>::run([&](int j) OVSW_INLINE_LAMBDA { sum[j] = vdupq_n_s64(0); });
    const auto* x = static_cast<const std::int16_t*>(args.in.data);
    for (int i = 0; i < blocks; ++i, x += kBlock, w += kBlock * kPanel) {
      const int16x8_t x0 = vld1q_s16(x), x1 = vld1q_s16(x + 8);
      Unroll<kPanel>::run([&](int j) OVSW_INLINE_LAMBDA {
        sum[j] = add_products<kPairs>(sum[j], x0, vld1q_s16(w + j * kBlock));
        sum[j] = add_products<kPairs>(sum[j], x1, vld1q_s16(w + j * kBlock + 8));
      });
    }
    float logits[kPanel];
    Unroll<2>::run([&](int h) OVSW_INLINE_LAMBDA {
      const int32x4_t shift = vnegq_s32(vld1q_s32(args.constant<std::int32_t>(kShift) + c + 4 * h));
      const int64x2_t a = vpaddq_s64(sum[4 * h], sum[4 * h + 1]), b = vpaddq_s64(sum[4 * h + 2], sum[4 * h + 3]);
      const int32x2_t low = vmovn_s64(vrshlq_s64(a, vmovl_s32(vget_low_s32(shift))));
      const int32x4_t q = vmovn_high_s64(low, vrshlq_s64(b, vmovl_high_s32(shift)));
      const int32x4_t base = vld1q_s32(args.border.base + c + 4 * h);
      vst1q_f32(logits + 4 * h, vmulq_n_f32(vcvtq_f32_s32(vaddq_s32(q, base)), *args.constant<float>(kScale)));
    });
    for (int j = 0; j < kPanel && c + j < s.out_c; ++j) static_cast<float*>(args.out.data)[c + j] = logits[j];
  }
}

}  // namespace

std::size_t Linear::packed_bytes(const Shape& s) {
  return kHeader + std::size_t(ceil_div(s.out_c, kPanel)) * blocks_of(s) * kBlock * kPanel * sizeof(std::int16_t);
}

void Linear::pack(const Shape& s, const void* weights, void* packed) {
  std::memset(packed, 0, packed_bytes(s));
  const auto* from = static_cast<const std::int16_t*>(weights);
  auto* header = static_cast<std::uint8_t*>(packed);
  auto* out = reinterpret_cast<std::int16_t*>(header + kHeader);
  *header = 1;
  for (int c = 0; c < s.out_c; ++c) {
    std::int16_t* row = out + (std::size_t(c / kPanel) * blocks_of(s) * kPanel + c % kPanel) * kBlock;
    for (int k = 0; k < s.in_c; ++k) {
      if (*from == -32768) *header = 0;
      row[std::size_t(k / kBlock) * kBlock * kPanel + k % kBlock] = *from++;
    }
  }
}

std::size_t Linear::scratch_bytes(const Shape&) { return 0; }

void Linear::run(const KernelArgs& args, std::int64_t, std::int64_t, void*) {
  const auto* header = static_cast<const std::uint8_t*>(args.weights);
  const auto* weights = reinterpret_cast<const std::int16_t*>(header + kHeader);
  if (*header) {
    linear<true>(args, weights);
  } else {
    linear<false>(args, weights);
  }
}

}  // namespace ovsw::OVSW_ISA::neon
