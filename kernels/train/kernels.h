// Training on a CPU: the contract between the driver (unit.cc) and what is compiled once per instruction set.
//
// A unit is a binary 3x3 convolution with padding 1, and what follows it: y = clamp(a[c] * dot + b[c] + residual).
// Maps are float (image, channel, row, column), dots are int16. Kernels take a range of packs: images that lie side by
// side in the lanes of a vector row, so that small maps fill it too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovsw::train {

constexpr int kBlock = 16;      // channels come in multiples of this
constexpr int kRowBytes = 128;  // a row of lanes: 64 int16 or 32 floats
constexpr int kFloats = 32, kShorts = 64;
constexpr int kMaxWidth = kFloats;

struct Unit {
  int n, cin, cout, h, w, stride;

  int out_h() const { return (h - 1) / stride + 1; }
  int out_w() const { return (w - 1) / stride + 1; }
  std::size_t in_size() const { return std::size_t(cin) * std::size_t(h) * std::size_t(w); }
  std::size_t out_pixels() const { return std::size_t(out_h()) * std::size_t(out_w()); }
  std::size_t out_size() const { return std::size_t(cout) * out_pixels(); }
  // Images in one row of so many lanes.
  int images(int lanes) const { return lanes / out_w(); }
  int packs(int lanes) const { return (n + images(lanes) - 1) / images(lanes); }
  std::size_t offsets() const { return std::size_t(cin) * std::size_t(cout) / 4 * 9; }
};

struct Forward {
  Unit unit;
  const float* x;
  const std::uint16_t* offsets;  // to which of the 16 sums each filter's signs point, as unit.cc makes them
  std::int16_t* dots;
  float* deviation;     // per image
  std::int64_t* sums;   // per image and output channel: sum of dots, sum of their squares
  std::int64_t* zeros;  // per image: activations that are exactly 0
  float eps;
};

// The gradient of the dots is scale[c] * g + slope[c] * dot + offset[c], where g = grad_y inside the clamp and 0
// outside; without `y` there is no clamp, and without `slope` just the first term.
struct Backward {
  Unit unit;
  const float* x;
  const float* deviation;
  const float* grad_y;
  const float* y;
  const std::int16_t* dots;
  const float* scale;
  const float* slope;
  const float* offset;
  float lo, hi;
  const std::uint16_t* offsets;  // of the weights turned around
  float* grad_x;                 // may be null
  bool add_residual;             // the unit's residual is x itself: its gradient g is added
};

// What follows the dots works on n x c maps, one by one.
struct Maps {
  int n, c;
  std::size_t pixels;
};

struct Kernels {
  const char* name;
  std::size_t (*forward_scratch)(const Unit&);
  void (*forward)(const Forward&, int first_pack, int last_pack, std::byte* scratch);
  std::size_t (*backward_scratch)(const Unit&);
  // Adds to grad_w, cout / 16 x 3 rows of the window x cin x 3 columns x 16 output channels.
  void (*backward)(const Backward&, int first_pack, int last_pack, float* grad_w, std::byte* scratch);
  // y = clamp(a * dot + b + residual) for images [first, last).
  void (*apply)(const Maps&, const std::int16_t* dots, const float* a, const float* b, const float* residual, float lo,
                float hi, float* y, int first, int last);
  // Per image and channel: sum of g and of g * dot; writes g if it is wanted.
  void (*reduce)(const Maps&, const float* grad_y, const float* y, const std::int16_t* dots, float lo, float hi,
                 double* sums, float* g, int first, int last);
};

// Those of this build, ended by a null.
const Kernels* const* all_kernels();

}  // namespace ovsw::train
