// A binary unit, forward and back, over all threads: convolution, batch norm, residual, activation. Results do not
// depend on the number of threads. kernels/train/kernels.h says what a unit computes.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/train/kernels.h"

namespace ovsw::train {

// Batch norm. In training it uses the batch's statistics and updates running_mean and running_var unless they are null.
struct Norm {
  const float* weight;
  const float* bias;
  float* running_mean;
  float* running_var;
  double eps, momentum;
  bool training;
};

// The convolution of a unit. Optional parts are null.
struct Convolution {
  Unit unit;
  const float* x;
  const float* shift;   // per input channel, added before the sign
  const float* weight;  // cout x cin x 3 x 3: its signs are taken
  const float* scale;   // per output channel
  const float* ratio;   // per output channel: z = sum of (w + ratio) * (s + level)
  float level;
};

struct UnitForward {
  Convolution conv;
  const Norm* norm;       // null: v = scale * z + residual
  const float* residual;  // may be null
  Act act;
  float eps;          // of the deviation
  bool measure;       // whether to compute each image's deviation; otherwise `deviation` is given
  bool zeros_matter;  // an exact 0 has the sign 0
  std::uint32_t* bits;
  std::int16_t* dots;
  float* z;  // with a ratio
  float* deviation;
  // For backward, 5 x cout: mean of z, 1 / deviation of scale * z, variance of z, a and b of kernels.h.
  double* moments;
  float* y;
};

// Returns false, with y not written, if zeros matter and an activation or weight is zero.
bool forward(const Kernels& kernels, const UnitForward& f, int threads);

struct UnitBackward {
  Convolution conv;
  const std::uint32_t* bits;
  const std::int16_t* dots;
  const float* z;
  const float* deviation;
  const double* moments;
  const float* norm_weight;  // null without a batch norm
  const float* residual;     // the one that was added, with slopes only
  Act act;
  const float* y;  // null without a clamp
  const float* grad_y;
  bool add_residual;  // the residual was x itself
  float* g;           // the gradient of v, which is also that of the residual
  float* grad_x;      // may be null, like all that follow
  float* grad_weight;
  float* grad_scale;
  float* grad_norm;   // 2 x cout: of the batch norm's weight and bias
  float* grad_shift;  // cin, and one more: of the deviation, where all images have the same
  float* grad_ratio;  // cout, and one more: of the level
  float* grad_act;    // 4 x cout: before, above, below, after
};

void backward(const Kernels& kernels, const UnitBackward& b, int threads);

// act(norm(z)) for maps that do not come from a binary convolution.
struct NormForward {
  int n, c;
  std::size_t pixels;
  const float* z;
  Norm norm;
  Act act;
  double* moments;  // as in UnitForward
  float* y;
};

void forward(const Kernels& kernels, const NormForward& f, int threads);

struct NormBackward {
  int n, c;
  std::size_t pixels;
  const float* z;
  const double* moments;
  const float* norm_weight;
  Act act;
  const float* y;  // null without a clamp
  const float* grad_y;
  float* g;
  float* grad_z;
  float* grad_norm;
};

void backward(const Kernels& kernels, const NormBackward& b, int threads);

// The kernels of an instruction set, or the best for this CPU if `isa` is empty; the portable ones if it has none.
const Kernels& choose_kernels(const std::string& isa);

}  // namespace ovsw::train
