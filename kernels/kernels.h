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
// act begins with a clamp to lo and hi, but for step. If out is an i32, out = q and nothing else is. linear has one
// output pixel:
//     out[c] = float(((sum + rounding) >> shift[c]) + base[0][c]) * scale[0]         sum in 64 bits
// Activations, of u = z or of u = clamp(q + residual, lo, hi):
//     prelu            u < 0 is multiplied by slope[c], others by positive[c], if that is there. In integers a product
//                      is ((2 * u + 1) * slope[c]) >> 15, saturated to 16 bits
//     step             hi if z (q + residual) >= 0, else lo; nothing is clamped
//     sigmoid          1 / (1 + e^-u), in float only
//     table            in integers, by kernels without weights: slope is a table of 257, see portable/epilogue.h
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovsw {

enum class Numerics : std::uint32_t { kFloat = 0, kInteger = 1 };
constexpr int kNumericsCount = 2;

// What a value's elements are; the codes of the file.
enum class Element : std::uint32_t { kF32 = 0, kBits = 1, kI16 = 2, kI32 = 3, kU8 = 4 };

enum class Act : std::uint32_t { kNone = 0, kClamp = 1, kPrelu = 2, kStep = 3, kSigmoid = 4, kTable = 5 };

// What a kernel computes before its epilogue. A conv on pixels reads u8, the other one the network's own maps. Those
// with groups or dilation are cores of their own, so that nobody else pays for them.
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
};
constexpr int kCoreCount = 17;

// What an op has per channel. kWindow and kPositive are second rows: of the scale, and of the slope.
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

// How many bytes after the end of a map that is read may be read, too, and not used; before it there are none, and none
// after one that is only written. All other memory ends where its sizes say, but what begins at a 64-byte aligned
// address is readable up to the next one.
constexpr std::size_t kReadSlack = 64;

// A map in memory, aligned as its elements are; null if it is not there, or not wanted.
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
  // bconv in float, null where there is none of it: what taps outside add to a dot, [class][padded_channels]; and with
  // a window scale the sum over the window, (window[2 * class] + 2 * popcount(patch)) + window[2 * class + 1].
  const double* outside;
  const double* window;
};

struct KernelArgs {
  Shape shape;
  int first_channel, last_channel;
  View in, residual, out;  // residual has the shape of out and may be the same memory; of mul and concat the other map
  std::uint64_t* bits;     // null if not wanted
  const void* weights;     // in the kernel's own layout, 64-byte aligned
  Border border;           // bconv, and in integers ops with an offset; classes of bconv and conv only
  Act act;
  float lo, hi;       // of kClamp and kStep; in integers of every op, whole numbers of 16 bits
  int channel_shift;  // channel_pad only: output channel c is input channel c - channel_shift, or zero
  bool per_channel;   // eltwise, mul: residual is one pixel, which counts for every one
  bool exclude_pad;   // avgpool: what is outside the image does not count as taps
  float pad_value;    // gather: what stands where an index is -1

  // By Constant, null if the op has none. In float: scale, window and offset f64, slope, positive and threshold f32. In
  // integers: all i16 but shift i32 and the scale of linear, one f32; the offset is part of border.base. to_float has
  // scale and offset f64.
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

  // Weights from the file's layout [out_c][window_h][window_w][in_c / groups] into the kernel's: words of bits for
  // bconv, int32 for gather and bilinear, otherwise float or int16, int8 ones as what they count. No bytes, no weights.
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
