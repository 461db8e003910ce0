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
};

// The tables that were built, best first; `count` receives their number.
const KernelTable* const* kernel_tables(int* count);

}  // namespace ovsw
