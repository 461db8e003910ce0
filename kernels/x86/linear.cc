// The classifier: exact 64-bit sums of int16 products, then one conversion to float.
//
//     packed[panel][pair of inputs][lane][2]      kPanel outputs to a panel
//
// VPMADDWD adds two products to 32 bits; their sum lies in -2^31 + 2^16 .. 2^31, the top only for four times -32768.
// Adding 2^31 - 1 makes that 0 .. 2^32 - 1, whose halves are summed as two 32-bit numbers, at most kRun at a time.

#include "kernels/x86/groups.h"
#include "kernels/x86/kernels.h"
#include "kernels/x86/vector.h"

namespace ovsw::OVSW_ISA::x86 {
namespace {

constexpr int kVectors = 4;
constexpr int kPanel = kVectors * kLanes;
constexpr std::int64_t kRun = 65536;  // times 65535: fits 32 bits unsigned
constexpr std::int64_t kBias = 0x7fffffff;

std::int64_t features(const Shape& s) { return std::int64_t(s.in_h) * s.in_w * s.in_c; }

}  // namespace

std::size_t Linear::packed_bytes(const Shape& s) {
  return packed_groups_bytes<std::int16_t>(s.out_c, features(s), kPanel);
}

void Linear::pack(const Shape& s, const void* weights, void* packed) {
  pack_groups<std::int16_t>(weights, s.out_c, features(s), kPanel, 1, packed);
}

std::size_t Linear::scratch_bytes(const Shape&) { return 0; }

void Linear::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void*) {
  if (begin >= end) return;
  const Shape& s = args.shape;
  const std::int64_t pairs = ceil_div(features(s), 2);
  const auto* in = static_cast<const std::int16_t*>(args.in.data);  // an odd last element's partner has weight 0
  const auto* weights = static_cast<const std::int16_t*>(args.weights);
  const Vec bias = all32(std::int32_t(kBias)), low = all32(0xffff);
  for (int c0 = args.first_channel; c0 < args.last_channel; c0 += kPanel) {
    const std::int16_t* panel = weights + c0 * pairs * 2;
    std::int64_t sum[kPanel];
    for (std::int64_t& y : sum) y = -pairs * kBias;
    for (std::int64_t first = 0; first < pairs; first += kRun) {
      const std::int64_t last = pairs - first < kRun ? pairs : first + kRun;
      Vec lo[kVectors], hi[kVectors];
      for (int v = 0; v < kVectors; ++v) lo[v] = hi[v] = zero();
      for (std::int64_t k = first; k < last; ++k) {
        const Vec x = all_groups(in + 2 * k);
        for (int v = 0; v < kVectors; ++v) {
          const Vec w = load(panel + (k * kPanel + v * kLanes) * 2);
          const Vec y = add32(multiply_pairs(x, w), bias);
          lo[v] = add32(lo[v], OVSW_SI (and)(y, low));
          hi[v] = add32(hi[v], OVSW_MM(srli_epi32)(y, 16));
        }
      }
      alignas(Vec) std::uint32_t l[kPanel], h[kPanel];
      for (int v = 0; v < kVectors; ++v) {
        store(l + v * kLanes, lo[v]);
        store(h + v * kLanes, hi[v]);
      }
      for (int j = 0; j < kPanel; ++j) sum[j] += (std::int64_t(h[j]) << 16) + l[j];
    }
    const int n = s.out_c - c0 < kPanel ? s.out_c - c0 : kPanel;
    for (int j = 0; j < n; ++j) {
      const int shift = args.constant<std::int32_t>(kShift)[c0 + j];
      const std::int64_t rounding = shift ? std::int64_t(1) << (shift - 1) : 0;
      const auto q = std::int32_t(((sum[j] + rounding) >> shift) + args.border.base[c0 + j]);
      static_cast<float*>(args.out.data)[c0 + j] = float(q) * *args.constant<float>(kScale);
    }
  }
}

}  // namespace ovsw::OVSW_ISA::x86
