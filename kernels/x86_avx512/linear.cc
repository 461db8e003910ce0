// The classifier: exact 64-bit sums of int16 products, then one conversion to float.
//
//     packed[panel][pair of inputs][lane][2]      kLanes outputs to a panel
//
// VPMADDWD adds two products to 32 bits; their sum lies in -2^31 + 2^16 .. 2^31, the top only for four times -32768.
// Adding 2^31 - 1 makes that 0 .. 2^32 - 1, whose halves are summed as two 32-bit numbers, at most kRun at a time.

#include "kernels/portable/integer.h"
#include "kernels/x86_avx512/epilogue.h"

namespace ovsw::x86_avx512 {
namespace {

constexpr int kVectors = 4;
constexpr int kLanes = kVectors * 16;
constexpr std::int64_t kRun = 65536;  // times 65535: fits 32 bits unsigned
constexpr std::int64_t kBias = 0x7fffffff;

std::int64_t features(const Shape& s) { return std::int64_t(s.in_h) * s.in_w * s.in_c; }

}  // namespace

std::size_t int_linear_packed_bytes(const Shape& s) {
  return std::size_t(ceil_div(s.out_c, kLanes) * ceil_div(features(s), 2)) * kLanes * 2 * sizeof(std::int16_t);
}

void int_linear_pack(const Shape& s, const std::int16_t* weights, void* packed) {
  const std::int64_t size = features(s), pairs = ceil_div(size, 2);
  auto* out = static_cast<std::int16_t*>(packed);
  std::memset(out, 0, int_linear_packed_bytes(s));
  for (int c = 0; c < s.out_c; ++c) {
    std::int16_t* panel = out + (c / kLanes * pairs * kLanes + c % kLanes) * 2;
    for (std::int64_t f = 0; f < size; ++f) panel[f / 2 * kLanes * 2 + f % 2] = weights[c * size + f];
  }
}

void int_linear(const IntArgs& args, std::int64_t begin, std::int64_t end, void*) {
  if (begin >= end) return;
  const Shape& s = args.shape;
  const std::int64_t pairs = ceil_div(features(s), 2);
  const auto* in = static_cast<const std::int16_t*>(args.in);  // an odd last element's partner has weight 0
  const auto* weights = static_cast<const std::int16_t*>(args.weights);
  const __m512i bias = _mm512_set1_epi32(std::int32_t(kBias));
  const __m512i low = _mm512_set1_epi32(0xffff);
  for (int c0 = args.first_channel; c0 < args.last_channel; c0 += kLanes) {
    const std::int16_t* panel = weights + c0 * pairs * 2;
    std::int64_t sum[kLanes];
    for (std::int64_t& y : sum) y = -pairs * kBias;
    for (std::int64_t first = 0; first < pairs; first += kRun) {
      const std::int64_t last = pairs - first < kRun ? pairs : first + kRun;
      __m512i lo[kVectors], hi[kVectors];
      for (int v = 0; v < kVectors; ++v) lo[v] = hi[v] = _mm512_setzero_si512();
      for (std::int64_t k = first; k < last; ++k) {
        std::int32_t pair;
        std::memcpy(&pair, in + 2 * k, sizeof pair);
        const __m512i x = _mm512_set1_epi32(pair);
        for (int v = 0; v < kVectors; ++v) {
          const __m512i w = load(panel + (k * kLanes + v * 16) * 2);
          const __m512i y = _mm512_add_epi32(_mm512_madd_epi16(x, w), bias);
          lo[v] = _mm512_add_epi32(lo[v], _mm512_and_si512(y, low));
          hi[v] = _mm512_add_epi32(hi[v], _mm512_srli_epi32(y, 16));
        }
      }
      alignas(64) std::uint32_t l[kLanes], h[kLanes];
      for (int v = 0; v < kVectors; ++v) {
        store(l + v * 16, lo[v]);
        store(h + v * 16, hi[v]);
      }
      for (int j = 0; j < kLanes; ++j) sum[j] += (std::int64_t(h[j]) << 16) + l[j];
    }
    const int n = s.out_c - c0 < kLanes ? s.out_c - c0 : kLanes;
    for (int j = 0; j < n; ++j) {
      const int shift = args.shift[c0 + j];
      const std::int64_t rounding = shift ? std::int64_t(1) << (shift - 1) : 0;
      const auto q = std::int32_t(((sum[j] + rounding) >> shift) + args.border.base[c0 + j]);
      args.logits[c0 + j] = float(q) * args.logit_scale;
    }
  }
}

}  // namespace ovsw::x86_avx512
