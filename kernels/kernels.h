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
//     z    = scale[c] * core(input) + offset[c] + residual     (in double, rounded once to float)
//     out  = v = act(z),  bits = (v >= threshold[c])           without a threshold 0
//     bconv with a window scale   z = scale[c] * Y + window[c] * S + offset[c] + residual, S the sum over the window
// Integer numerics (docs/numerics.md):
//     bconv            q = (base[class][c] - 2 * scale[c] * popcount(patch xor weights)
//                           + 2 * window[c] * popcount(patch)) >> shift[c]           without a window scale 0
//     conv, on pixels  q = (base[class][c] + sum of weight * x) >> shift[c]          taps outside the image count 0
//     avgpool, mul     q = (scale[c] * Y + base[0][c]) >> shift[c]                   in 64 bits
//     others           q is the core's result
//     out = v = act(q + residual),  bits = (v >= threshold[c])
// where base holds offset, border and zero-point terms and scale >= 0; sums fit in 32 bits, their parts wrap around.
// act begins with a clamp to lo and hi, except for step. linear has one output pixel:
//     out[c] = float(((sum + rounding) >> shift[c]) + base[0][c]) * scale[0]         sum in 64 bits
// Activations, of u = z or of u = clamp(q + residual, lo, hi):
//     prelu            u < 0 is multiplied by slope[c], other u by positive[c] if the op has it. In integers a product
//                      is ((2 * u + 1) * slope[c]) >> 15, saturated to 16 bits
//     step             hi if z (q + residual) >= 0, else lo; nothing is clamped
//     sigmoid          1 / (1 + e^-u), in float only
//     table            in integers, for kernels without weights: slope is a table of 257, see portable/epilogue.h
// Wide ops, in integers: out is an i32, nothing is clamped but by kClamp, there is no table, and a prelu multiplies
// u = q + residual to (u * slope[c] + 2^29) >> 30 in 64 bits; |u| < 2^30 there, and all results fit in 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovsw {

enum class Numerics : std::uint32_t { kFloat = 0, kInteger = 1 };
constexpr int kNumericsCount = 2;

// The type of a value's elements; the numbers are the file's codes.
enum class Element : std::uint32_t { kF32 = 0, kBits = 1, kI16 = 2, kI32 = 3, kU8 = 4 };

// What an offset counts in an avgpool or a mul of an i32.
constexpr std::int64_t kOffsetUnit = 65536;

enum class Act : std::uint32_t { kNone = 0, kClamp = 1, kPrelu = 2, kStep = 3, kSigmoid = 4, kTable = 5 };

// What a kernel computes before its epilogue. kConvPixels reads u8 pixels, kConv the network's own maps. Convolutions
// with groups or dilation are separate cores, so that others do not pay for them.
enum class Core {
  kBconv,
  kConvPixels,
  kConv,
  kLinear,
  kMaxpool,
  kAvgpool,
  kChannelPad,
  kEltwise,
  kBconvAny,
  kConvAny,  // also on pixels
  kMul,
  kConcat,
  kGather,
  kBilinear,
  kSoftmax,
  kLogSoftmax,
  kToFloat,
  kRound,
};
constexpr int kCoreCount = 18;

// The per-channel constants of an op. kWindow is the second row of the scale, kPositive that of the slope.
enum Constant { kScale, kOffset, kSlope, kShift, kThreshold, kWindow, kPositive };
constexpr int kConstantCount = 7;

struct Shape {
  int in_h, in_w, in_c;
  int out_h, out_w, out_c;
  int window_h, window_w, stride_h, stride_w, pad_h, pad_w;
  int gap_h, gap_w;  // pixels between two taps: dilation - 1
  int groups;        // output channel c belongs to group c / (out_c / groups), input channels likewise

  int group_in() const { return in_c / groups; }
  int group_out() const { return out_c / groups; }
};

// Kernels may read this many bytes past the end of an input map without using them, but none before it, and none past a
// map that is only written. All other memory ends where its size says, except that memory at a 64-byte aligned address
// is readable up to the next such address.
constexpr std::size_t kReadSlack = 64;

// A map in memory, aligned as its elements are; null if it does not exist or is not wanted.
struct View {
  void* data;
  Element kind;

  // The elements if the map has this kind, else null.
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
  // bconv in float, otherwise null. outside[class][padded_channels] is what taps outside add to a dot. With a window
  // scale, the sum over the window is (window[2 * class] + 2 * popcount(patch)) + window[2 * class + 1].
  const double* outside;
  const double* window;
};

struct KernelArgs {
  Shape shape;
  int first_channel, last_channel;
  View in, residual, out;  // residual has the shape of out and may be the same memory; the second map of mul and concat
  std::uint64_t* bits;     // null if not wanted
  const void* weights;     // in the kernel's own layout, 64-byte aligned
  Border border;           // bconv, and in integers ops with an offset; classes of bconv and conv only
  Act act;
  float lo, hi;       // of kClamp and kStep; in integers of every op, whole numbers of 16 bits, if wide of 31
  int channel_shift;  // channel_pad only: output channel c is input channel c - channel_shift, or zero
  bool per_channel;   // eltwise, mul: residual is one pixel, which is used for all pixels
  bool wide;          // in integers: the op computes in 32 bits
  bool exclude_pad;   // avgpool: taps outside the image do not count
  float pad_value;    // gather: the value where an index is -1

  // By Constant, null if the op has none. In float: scale, window and offset f64, slope, positive and threshold f32. In
  // integers: all i16 but shift i32 and the scale of linear, one f32; of a wide op slope, positive and threshold are
  // i32, and so are scale and window of bconv. The offset is part of border.base. to_float has scale and offset f64.
  const void* constants[kConstantCount];

  template <typename T>
  const T* constant(Constant which) const {
    return static_cast<const T*>(constants[which]);
  }
};

// Per-channel memory is 64-byte aligned and may be read up to this many elements, without using the surplus.
static constexpr int padded_channels(int channels) { return (channels + 63) / 64 * 64; }

using KernelFn = void (*)(const KernelArgs&, std::int64_t begin, std::int64_t end, void* scratch);

// One row of a table.
struct Kernel {
  KernelFn run;

  // Packs weights from the file's layout [out_c][window_h][window_w][in_c / groups] into the kernel's own. They are
  // words of bits for bconv, int32 for gather and bilinear, otherwise float or int16 (int8 ones are converted before).
  // packed_bytes is 0 for a kernel without weights.
  std::size_t (*packed_bytes)(const Shape&);
  void (*pack)(const Shape&, const void* weights, void* packed);

  // Bytes of scratch per thread, at a 64-byte aligned address.
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

// The names of all tables, including those for other platforms; ends with a null.
extern const char* const kKnownTables[];

}  // namespace ovsw
