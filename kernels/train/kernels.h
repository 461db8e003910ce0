// Training on a CPU: the contract between the driver (csrc/train) and the kernels, which are compiled once per
// instruction set.
//
// A unit is a binary 3x3 convolution with padding 1 and what follows it. For input channel i and output channel o:
//
//     s   = sign(x + shift[i])                             one bit per input value
//     dot = sum of w * s                                   int16, over inputs and taps inside the image; w = +-1
//     z   = dot, or sum of (w + ratio[o]) * (s + level)    float, where the two values are not opposite (AdaBin)
//     v   = a[o] * z + b[o] + residual                     a and b hold scale and batch norm
//     y   = act(v)
//
// Maps are (image, channel, row, column). Kernels process a range of images or of packs. A pack is several images side
// by side in a row of vector lanes, so that small maps fill it, too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovsw::train {

constexpr int kBlock = 16;      // channels come in multiples of this
constexpr int kRowBytes = 128;  // a row of lanes: 128 bytes or 32 floats
constexpr int kFloats = 32, kSigns = 128;
constexpr int kMaxWidth = 64;

struct Unit {
  int n, cin, cout, h, w, stride;

  int out_h() const { return (h - 1) / stride + 1; }
  int out_w() const { return (w - 1) / stride + 1; }
  std::size_t in_pixels() const { return std::size_t(h) * std::size_t(w); }
  std::size_t in_size() const { return std::size_t(cin) * in_pixels(); }
  std::size_t out_pixels() const { return std::size_t(out_h()) * std::size_t(out_w()); }
  std::size_t out_size() const { return std::size_t(cout) * out_pixels(); }
  // 32-bit words of the signs of one image, with room to read 64 bits from any of them.
  std::size_t words() const { return (in_size() + 31) / 32 + 2; }
  // Images in a row of this many lanes. An image that is wider than a row of floats takes several rows in turn.
  int images(int lanes) const { return out_w() > lanes ? 1 : lanes / out_w(); }
  int packs(int lanes) const { return (n + images(lanes) - 1) / images(lanes); }
};

// The input of a unit: its signs, one bit each, and what the gradient of the sign needs.
struct Input {
  const float* x;
  const float* shift;   // per input channel, may be null
  std::uint32_t* bits;  // words() per image
  double* moments;      // per image: sum and sum of squares of x + shift; may be null
  std::int64_t* zeros;  // per image: numbers that are exactly 0
};

struct Forward {
  Unit unit;
  const std::uint32_t* bits;
  const std::uint16_t* offsets;  // which of the 16 sums each filter's signs select; the driver makes them
  std::int16_t* dots;
  std::int16_t* windows;  // per image and pixel: the dot of a filter of ones, the last of `offsets`; may be null
  std::int64_t* sums;     // per image and output channel: sum of dots, sum of their squares
};

// The maps that follow the dots: `n` x `c` of `pixels` each. One of `dots` and `z` is null.
struct Maps {
  int n, c;
  std::size_t pixels;
  const std::int16_t* dots;
  const float* z;
};

// z = dot + ratio[c] * window + border[c, pixel]. Sums per image and channel: of z, and of its square.
struct TwoValued {
  const std::int16_t* windows;
  const float* ratio;
  const float* border;
  float* z;
  double* sums;
};

// y = clamp(v), or with slopes: t = v + before[c]; y = (t > 0 ? above[c] : below[c]) * t + after[c].
struct Act {
  float lo, hi;
  const float *before, *above, *below, *after;  // null: a clamp
};

struct Apply {
  Maps maps;
  const float *a, *b;
  const float* residual;  // may be null
  Act act;
};

constexpr int kSums = 5;  // of g, g * z, grad_y, grad_y * t where t > 0, grad_y * t elsewhere

// From the gradient of y to g, that of v.
struct Reduce {
  Apply forward;
  const float* y;  // null without a clamp
  const float* grad_y;
  float* g;
  double* sums;  // kSums per image and channel; the last three with slopes only
};

// The gradient of z: scale[c] * g + slope[c] * z + offset[c]; without `slope` just the first term.
struct GradOfZ {
  Maps maps;
  const float* g;
  const float *scale, *slope, *offset;
};

struct Backward {
  Unit unit;
  GradOfZ of_z;
  Input input;
  const float* deviation;        // d per image: the gradient of the sign is (2 - 2|x + shift| / d) / d where positive
  const float* ratio;            // per output channel, may be null
  const std::uint16_t* offsets;  // of the weights turned around
  float* grad_x;                 // may be null
  bool add_residual;             // the unit's residual is x itself: g is added
  // Per image and input channel: the sums of the gradient of x + shift, and of that times x + shift; may be null.
  double* grad_shift;

  // With a ratio, the weights' gradient has a part that does not depend on signs: two more input channels of all +1.
  int grad_channels() const { return unit.cin + (ratio ? 2 : 0); }
};

struct Kernels {
  const char* name;
  void (*measure)(const Unit&, const Input&, int first, int last);
  std::size_t (*forward_scratch)(const Unit&);
  void (*forward)(const Forward&, int first_pack, int last_pack, std::byte* scratch);
  void (*two_valued)(const Maps&, const TwoValued&, int first, int last);
  // Per image and channel of float maps: sum of z, and of its square.
  void (*sums)(const Maps&, double* sums, int first, int last);
  void (*apply)(const Apply&, float* y, int first, int last);
  void (*reduce)(const Reduce&, int first, int last);
  void (*grad_of_maps)(const GradOfZ&, float* grad, int first, int last);
  std::size_t (*backward_scratch)(const Unit&);
  // Adds to grad_w, cout / 16 x 3 rows of the window x grad_channels() x 3 columns x 16 output channels.
  void (*backward)(const Backward&, int first_pack, int last_pack, float* grad_w, std::byte* scratch);
};

// The kernels of this build; ends with a null.
const Kernels* const* all_kernels();

}  // namespace ovsw::train
