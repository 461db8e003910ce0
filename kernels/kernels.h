// The contract between the plan and the kernels: one argument struct, one function type, one table per instruction set.
//
// Maps are channel-minor: pixel (y, x) of a map with C channels starts at element (y * W + x) * C. A map of bits has
// ceil(C / 64) words per pixel, channel c in bit c % 64 of word c / 64 (1 means +1), bits past C are zero.
//
// A kernel computes the output pixels [begin, end), counted row by row, and of those the channels [first_channel,
// last_channel), multiples of 64 but for the end of the map; kernels without weights compute all channels. It never
// allocates, throws or prints, writes nothing but its outputs and scratch, and gives the same bytes for any split.
//
// Float numerics:
//     z   = scale[c] * core(input) + offset[c] + residual     (in double, rounded once to float)
//     out = act(z),  bits = (act(z) >= 0)
// Integer numerics (docs/numerics.md):
//     bconv            q = (base[class][c] - 2 * popcount * scale[c]) >> shift[c]
//     conv, on pixels  q = (base[class][c] + sum of weight * x) >> shift[c]          taps outside the image count 0
//     avgpool          q = (scale[c] * sum + base[0][c]) >> shift[c]                 in 64 bits
//     others           q is the core's result
//     out = v = act(clamp(q + residual, lo, hi)),  bits = (v >= 0)
//     prelu            v < 0 becomes ((2 * v + 1) * slope[c]) >> 15, saturated to 16 bits
// where base holds offset, border and zero-point terms and scale >= 0; sums fit in 32 bits, their parts wrap around. If
// out is an i32, out = q and nothing else is. linear has one output pixel:
//     out[c] = float(((sum + rounding) >> shift[c]) + base[0][c]) * scale[0]         sum in 64 bits
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovsw {

enum class Numerics : std::uint32_t { kFloat = 0, kInteger = 1 };
constexpr int kNumericsCount = 2;

// What a value's elements are; the codes of the file.
enum class Element : std::uint32_t { kF32 = 0, kBits = 1, kI16 = 2, kI32 = 3, kU8 = 4 };

enum class Act : std::uint32_t { kNone = 0, kClamp = 1, kPrelu = 2 };

// What a kernel computes before its epilogue. A conv on pixels reads u8, the other one the network's own maps.
enum class Core { kBconv, kConvPixels, kConv, kLinear, kMaxpool, kAvgpool, kChannelPad, kEltwise };
constexpr int kCoreCount = 8;

// What an op has per channel.
enum Constant { kScale, kOffset, kSlope, kShift };
constexpr int kConstantCount = 4;

struct Shape {
  int in_h, in_w, in_c;
  int out_h, out_w, out_c;
  int window_h, window_w, stride_h, stride_w, pad_h, pad_w;
};

// A map in memory; null if it is not there, or not wanted. Up to 64 bytes after the end of one that is read may be
// read.
struct View {
  void* data;
  Element kind;

  // The elements, if the map is there and has this kind.
  template <typename T>
  T* as(Element wanted) const {
    return kind == wanted ? static_cast<T*>(data) : nullptr;
  }
};

// dot = base[class][c] - 2 * popcount(patch xor weights), where patch taps outside the image are all-zero bits.
// The class of output pixel (y, x) is row_class[y] + col_class[x]; see plan/border.h for the derivation.
struct Border {
  const std::int32_t* base;  // [class][padded_channels]
  const std::int32_t* row_class;
  const std::int32_t* col_class;
};

struct KernelArgs {
  Shape shape;
  int first_channel, last_channel;
  View in, residual, out;  // residual has the shape of out and may be the same memory
  std::uint64_t* bits;     // null if not wanted
  const void* weights;     // in the kernel's own layout, 64-byte aligned
  Border border;           // bconv, and all ops in integers
  Act act;
  float lo, hi;       // of kClamp; in integers of every op, whole numbers of 16 bits
  int channel_shift;  // channel_pad only: output channel c is input channel c - channel_shift, or zero

  // By Constant, null if the op has none. In float: scale and offset f64, slope f32. In integers: scale i16 (linear:
  // one f32), slope i16, shift i32, and the offset is part of border.base.
  const void* constants[kConstantCount];

  template <typename T>
  const T* constant(Constant which) const {
    return static_cast<const T*>(constants[which]);
  }
};

// Everything per channel is 64-byte aligned and may be read, not used, up to this many elements.
static constexpr int padded_channels(int channels) { return (channels + 63) / 64 * 64; }

using KernelFn = void (*)(const KernelArgs&, std::int64_t begin, std::int64_t end, void* scratch);

// One row of a table.
struct Kernel {
  KernelFn run;

  // Weights from the file's layout [out_c][window_h][window_w][in_c] into the kernel's: words of bits for bconv,
  // otherwise float or int16, int8 ones as what they count. No bytes, no weights.
  std::size_t (*packed_bytes)(const Shape&);
  void (*pack)(const Shape&, const void* weights, void* packed);

  // Bytes per thread of scratch, at a 64-byte aligned address.
  std::size_t (*scratch_bytes)(const Shape&);
};

struct KernelTable {
  const char* name;
  int priority;         // the best supported table has the highest
  bool (*supported)();  // by this CPU and operating system
  Kernel kernels[kNumericsCount][kCoreCount];

  const Kernel& kernel(Numerics numerics, Core core) const { return kernels[int(numerics)][int(core)]; }
};

// The tables that were built, best first; `count` receives their number.
const KernelTable* const* kernel_tables(int* count);

// The names of all tables, also of those for other platforms; null at the end.
extern const char* const kKnownTables[];

}  // namespace ovsw
