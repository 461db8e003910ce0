// The binary convolution in plain C++, with the float epilogue.

#include "kernels/portable/bconv.h"

#include "kernels/portable/epilogue.h"
#include "kernels/portable/patches.h"

namespace ovsw::OVSW_PORTABLE {

std::size_t bconv_packed_bytes(const Shape& s) { return patches::packed_bytes(s); }

void bconv_pack(const Shape& s, const std::uint64_t* weights, void* packed) { patches::pack(s, weights, packed); }

std::size_t bconv_scratch_bytes(const Shape& s) { return patches::scratch_bytes(s); }

void bconv(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  patches::for_dots(s, args.in, args.weights, args.border, s.out_c, begin, end, 0, s.out_c, scratch,
                    [&](std::int64_t pixel, std::int32_t* acc, const std::int32_t* base) OVSW_INLINE_LAMBDA {
                      for (int c = 0; c < s.out_c; ++c) acc[c] += base[c];
                      finish_pixel(args.epilogue, acc, pixel, s.out_c);
                    });
}

}  // namespace ovsw::OVSW_PORTABLE
