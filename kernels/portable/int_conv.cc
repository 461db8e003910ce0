// The integer convolutions in plain C++: a patch of int16 against the weights of kRows channels at a
// time. The loops over products are of the form that compilers turn into multiply-add instructions for int16 pairs.

#include "kernels/portable/int_epilogue.h"
#include "kernels/portable/integer.h"

namespace ovsw::OVSW_PORTABLE {
namespace {

constexpr int kRows = 4;

int patch_size(const Shape& s) { return s.kernel_h * s.kernel_w * s.in_c; }

// As in the file, with rows of zeros up to a multiple of kRows.
std::size_t padded_rows(const Shape& s) { return std::size_t(ceil_div(s.out_c, kRows)) * kRows; }

std::size_t packed_bytes(const Shape& s) { return padded_rows(s) * patch_size(s) * sizeof(std::int16_t); }

void pack(const Shape& s, const std::int16_t* weights, void* packed) {
  std::memset(packed, 0, packed_bytes(s));
  std::memcpy(packed, weights, std::size_t(s.out_c) * patch_size(s) * sizeof(std::int16_t));
}

std::size_t scratch_bytes(const Shape& s) {
  return padded_rows(s) * sizeof(std::int32_t) + std::size_t(patch_size(s)) * sizeof(std::int16_t);
}

// Values outside the image are 0.
template <typename In>
OVSW_INLINE void gather(const Shape& s, const In* in, std::int64_t pixel, std::int16_t* patch) {
  const int y0 = int(pixel / s.out_w) * s.stride_h - s.pad_h;
  const int x0 = int(pixel % s.out_w) * s.stride_w - s.pad_w;
  const int row = s.kernel_w * s.in_c;
  const int kx0 = x0 < 0 ? -x0 : 0;  // taps [kx0, kx1) lie in the image
  const int kx1 = x0 + s.kernel_w > s.in_w ? s.in_w - x0 : s.kernel_w;
  for (int ky = 0; ky < s.kernel_h; ++ky, patch += row) {
    const int y = y0 + ky;
    const bool inside = y >= 0 && y < s.in_h && kx0 < kx1;
    const int first = inside ? kx0 * s.in_c : row, last = inside ? kx1 * s.in_c : row;
    const std::int64_t from = (std::int64_t(y) * s.in_w + x0) * s.in_c;
    for (int i = 0; i < first; ++i) patch[i] = 0;
    for (int i = first; i < last; ++i) patch[i] = std::int16_t(in[from + i]);
    for (int i = last; i < row; ++i) patch[i] = 0;
  }
}

template <typename In>
OVSW_INLINE void conv(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const int size = patch_size(s), first = args.first_channel, last = args.last_channel;
  const auto* in = static_cast<const In*>(args.in);
  auto* q = static_cast<std::int32_t*>(scratch);
  auto* patch = reinterpret_cast<std::int16_t*>(q + padded_rows(s));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    gather(s, in, pixel, patch);
    const auto* weights = static_cast<const std::int16_t*>(args.weights) + std::int64_t(first) * size;
    for (int c = first; c < last; c += kRows, weights += std::int64_t(kRows) * size) {
      std::int32_t sum[kRows] = {};
      for (int k = 0; k < size; ++k) {
        for (int r = 0; r < kRows; ++r) sum[r] += patch[k] * weights[std::int64_t(r) * size + k];
      }
      for (int r = 0; r < kRows; ++r) q[c + r] = sum[r];
    }
    const Border& b = args.border;
    const int border_class = b.row_class[pixel / s.out_w] + b.col_class[pixel % s.out_w];
    const std::int32_t* base = b.base + std::int64_t(border_class) * int_base_stride(s.out_c);
    for (int c = first; c < last; ++c) q[c] = (q[c] + base[c]) >> args.shift[c];
    if (args.out32) {
      std::memcpy(args.out32 + pixel * s.out_c + first, q + first, std::size_t(last - first) * sizeof(std::int32_t));
    } else {
      int_finish_pixel(args, q, pixel, first, last);
    }
  }
}

}  // namespace

const int kPixelCentre = 0;

std::size_t int_conv_u8_packed_bytes(const Shape& s) { return packed_bytes(s); }
std::size_t int_conv_i16_packed_bytes(const Shape& s) { return packed_bytes(s); }

void int_conv_u8_pack(const Shape& s, const std::int16_t* weights, void* packed) { pack(s, weights, packed); }
void int_conv_i16_pack(const Shape& s, const std::int16_t* weights, void* packed) { pack(s, weights, packed); }

std::size_t int_conv_u8_scratch_bytes(const Shape& s) { return scratch_bytes(s); }
std::size_t int_conv_i16_scratch_bytes(const Shape& s) { return scratch_bytes(s); }

void int_conv_u8(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  conv<std::uint8_t>(args, begin, end, scratch);
}

void int_conv_i16(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  conv<std::int16_t>(args, begin, end, scratch);
}

}  // namespace ovsw::OVSW_PORTABLE
