// The binary convolution in plain C++, with the integer epilogue.

#include "kernels/portable/int_epilogue.h"
#include "kernels/portable/integer.h"
#include "kernels/portable/patches.h"

namespace ovsw::OVSW_PORTABLE {

std::size_t int_bconv_packed_bytes(const Shape& s) { return patches::packed_bytes(s); }

void int_bconv_pack(const Shape& s, const std::uint64_t* weights, void* packed) { patches::pack(s, weights, packed); }

std::size_t int_bconv_scratch_bytes(const Shape& s) { return patches::scratch_bytes(s); }

void int_bconv(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  // Sums wrap around: with border terms, base and product may each leave 32 bits while their difference does not.
  const auto wrap = [](std::int32_t x) OVSW_INLINE_LAMBDA { return std::uint32_t(x); };
  const int first = args.first_channel, last = args.last_channel;
  patches::for_dots(s, args.in, args.weights, args.border, int_base_stride(s.out_c), begin, end, first, last, scratch,
                    [&](std::int64_t pixel, std::int32_t* acc, const std::int32_t* base) OVSW_INLINE_LAMBDA {
                      for (int c = first; c < last; ++c) {
                        acc[c] = std::int32_t(wrap(base[c]) + wrap(acc[c]) * wrap(args.mult[c])) >> args.shift[c];
                      }
                      int_finish_pixel(args, acc, pixel, first, last);
                    });
}

}  // namespace ovsw::OVSW_PORTABLE
