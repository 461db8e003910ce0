// The convolution over pixels. Where all weights have 8 bits, pixels stay bytes: one VPDPBUSD does four of a patch, and
// the sum is 256 times its result. A header before the weights says which of the two it is.

#include "kernels/portable/eight_bits.h"
#include "kernels/x86/conv.h"
#include "kernels/x86_avx512/kernels.h"

namespace ovsw::x86_avx512 {
namespace {

using namespace x86;

struct Bytes {
  using In = std::uint8_t;
  using Value = std::uint8_t;
  static OVSW_INLINE void add(Vec& sum, Vec x, Vec w) { add_byte_products(sum, x, w); }
  static OVSW_INLINE Vec result(Vec sum) { return _mm512_slli_epi32(sum, 8); }
};
static_assert(portable::kUnit == 1 << 8);

}  // namespace

std::size_t ConvPixels::packed_bytes(const Shape& s) { return kHeader + packed_words_bytes(s); }

void ConvPixels::pack(const Shape& s, const void* weights, void* packed) {
  auto* to = static_cast<std::uint8_t*>(packed);
  std::memset(to, 0, kHeader);
  to[0] = portable::eight_bits(s, weights);
  if (to[0]) {
    pack_groups<std::int8_t>(weights, s.out_c, patch_values(s), kSlab, portable::kUnit, to + kHeader);
  } else {
    pack_words(s, weights, to + kHeader);
  }
}

std::size_t ConvPixels::scratch_bytes(const Shape& s) { return words_scratch_bytes(s); }

void ConvPixels::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const auto* weights = static_cast<const std::uint8_t*>(args.weights);
  if (weights[0]) {
    run_conv<Bytes>(args, weights + kHeader, begin, end, scratch);
  } else {
    run_conv<Pixels>(args, weights + kHeader, begin, end, scratch);
  }
}

}  // namespace ovsw::x86_avx512
