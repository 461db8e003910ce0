// The contract between the plan and the kernels: plain structs and one table of function pointers per instruction set.
//
// Maps are channel-minor: pixel (y, x) of a map with C channels starts at element (y * W + x) * C. A map of bits has
// ceil(C / 64) words per pixel, channel c in bit c % 64 of word c / 64 (1 means +1), bits past C are zero.
//
// A kernel computes the output pixels [begin, end), counted row by row, of one op:
//     z   = scale[c] * core(input) + offset[c] + residual     (in double, rounded once to float)
//     out = act(z),  bits = (act(z) >= 0)
// It never allocates, throws or prints, reads nothing outside its operands, and gives the same bytes for any split of
// the pixels into ranges.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovsw {

enum class Act : std::uint32_t { kNone = 0, kClamp = 1, kPrelu = 2 };

struct Shape {
  int in_h, in_w, in_c;
  int out_h, out_w, out_c;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

// What happens to the core's result. Null means: not there, or not wanted; scale and offset come together.
// `residual` has the shape of `out` and may be the same memory.
struct Epilogue {
  const double* scale;
  const double* offset;
  const float* residual;
  Act act;
  float lo, hi;        // kClamp
  const float* slope;  // kPrelu, per channel
  float* out;
  std::uint64_t* bits;
};

// dot = base[class][c] - 2 * popcount(patch xor weights), where patch taps outside the image are all-zero bits.
// The class of output pixel (y, x) is row_class[y] + col_class[x]; see plan/border.h for the derivation.
struct Border {
  const std::int32_t* base;  // [class][out_c]
  const std::int32_t* row_class;
  const std::int32_t* col_class;
};

struct KernelArgs {
  Shape shape;
  const void* in;       // float or bits
  const void* weights;  // in the table's own layout, 64-byte aligned
  Border border;        // bconv only
  int channel_shift;    // channel_pad only: output channel c is input channel c - channel_shift, or zero
  Epilogue epilogue;
};

using KernelFn = void (*)(const KernelArgs&, std::int64_t begin, std::int64_t end, void* scratch);

// Integer numerics (docs/numerics.md). A kernel computes, for output pixels [begin, end) and channel c,
//     bconv            q = (base[class][c] - 2 * popcount * mult[c]) >> shift[c]     popcount as for Border
//     conv_u8, _i16    q = (base[class][c] + sum of weight * x) >> shift[c]          taps outside the image count 0
//     maxpool, channel_pad, eltwise                                                  q as in docs/numerics.md
//     avgpool          q = (mult[c] * sum + base[0][c]) >> shift[c]                  in 64 bits
//     out = v = clamp(q + residual, lo, hi),  bits = (v >= 0)
// where base holds offset, border and zero-point terms and mult >= 0; sums fit in 32 bits, their parts wrap around. If
// out32 is set, out32 = q and nothing else is. conv_u8 sees a pixel as v - pixel_centre; base makes up for that. linear
// has one output pixel:
//     logits[c] = float(((sum + rounding) >> shift[c]) + base[0][c]) * logit_scale   sum in 64 bits
// bconv, conv and linear compute the channels [first_channel, last_channel), multiples of 64 but for the end of the
// map; the others all. The rules for KernelFn hold here too. residual may be the same memory as out.
struct IntArgs {
  Shape shape;
  const void* in;       // bits, uint8 or int16
  const void* weights;  // in the table's own layout, 64-byte aligned
  Border border;        // row_class and col_class are all zero where there is only one class
  const std::int16_t* mult;
  const std::int32_t* shift;  // 0 to 31, for avgpool and linear 0 to 47
  int first_channel, last_channel;
  int channel_shift;  // channel_pad only
  const std::int16_t* residual;
  const std::int32_t* residual32;  // at most one of the two
  std::int32_t lo, hi;
  std::int16_t* out;
  std::int32_t* out32;
  std::uint64_t* bits;
  float* logits;
  float logit_scale;
};

using IntFn = void (*)(const IntArgs&, std::int64_t begin, std::int64_t end, void* scratch);

// Everything per channel (base, mult, shift) is 64-byte aligned and may be read, not used, up to the next multiple of
// 64 elements past the last channel; base has a row per class, each padded to that multiple of elements
// (int_base_stride). Maps and bits are padded likewise: up to 64 bytes after the end of `in` and `residual` may be
// read.
static constexpr int int_base_stride(int channels) { return (channels + 63) / 64 * 64; }

struct IntKernels {
  IntFn bconv, conv_u8, conv_i16, linear, maxpool, avgpool, channel_pad, eltwise;

  // Weights from the file's layout [out_c][kernel_h][kernel_w][in_c] into the kernel's; int8 ones come as what they
  // count.
  std::size_t (*bconv_packed_bytes)(const Shape&);
  void (*bconv_pack)(const Shape&, const std::uint64_t* weights, void* packed);
  std::size_t (*conv_u8_packed_bytes)(const Shape&);
  void (*conv_u8_pack)(const Shape&, const std::int16_t* weights, void* packed);
  std::size_t (*conv_i16_packed_bytes)(const Shape&);
  void (*conv_i16_pack)(const Shape&, const std::int16_t* weights, void* packed);
  std::size_t (*linear_packed_bytes)(const Shape&);
  void (*linear_pack)(const Shape&, const std::int16_t* weights, void* packed);

  // Bytes per thread of scratch, at a 64-byte aligned address, as above.
  std::size_t (*bconv_scratch_bytes)(const Shape&);
  std::size_t (*conv_u8_scratch_bytes)(const Shape&);
  std::size_t (*conv_i16_scratch_bytes)(const Shape&);
  std::size_t (*map_scratch_bytes)(const Shape&);  // all others

  const int* pixel_centre;  // 0 or 128
};

// One entry per kernel; what a new instruction set has to fill in.
struct KernelTable {
  const char* name;
  bool (*supported)();  // by this CPU and operating system

  KernelFn bconv, conv, maxpool, avgpool, channel_pad, eltwise;

  // Weights from the file's layout [out_c][kernel_h][kernel_w][in_c] into the kernel's.
  std::size_t (*bconv_packed_bytes)(const Shape&);
  void (*bconv_pack)(const Shape&, const std::uint64_t* weights, void* packed);
  std::size_t (*conv_packed_bytes)(const Shape&);
  void (*conv_pack)(const Shape&, const float* weights, void* packed);

  // Bytes per thread that a kernel needs as scratch, at a 64-byte aligned address; `map` is for those without weights.
  std::size_t (*bconv_scratch_bytes)(const Shape&);
  std::size_t (*conv_scratch_bytes)(const Shape&);
  std::size_t (*map_scratch_bytes)(const Shape&);

  IntKernels integer;
};

// The tables that were built, best first; `count` receives their number.
const KernelTable* const* kernel_tables(int* count);

}  // namespace ovsw
