// A binary unit, forward and back, over all threads: convolution, batch norm, residual, clamp. Results do not depend on
// the number of threads.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/train/kernels.h"

namespace ovsw::train {

// Batch norm over a batch. `running_mean` and `running_var` may be null.
struct Norm {
  const float* weight;
  const float* bias;
  float* running_mean;
  float* running_var;
  double eps, momentum;
};

struct UnitForward {
  Unit unit;
  const float* x;
  const float* weight;    // cout x cin x 3 x 3
  const float* scale;     // per output channel
  const Norm* norm;       // null: y = scale * dot
  const float* residual;  // may be null
  float lo, hi;
  float eps;          // of the deviation
  bool zeros_matter;  // an exact 0 has the sign 0
  std::int16_t* dots;
  float* deviation;
  double* moments;  // 3 x cout, for the backward: mean of the dots, 1 / deviation of scale * dot, variance of the dots
  float* y;
};

// Returns false, with y not written, if zeros matter and there is one among activations or weights.
bool forward(const Kernels& kernels, const UnitForward& f, int threads);

struct UnitBackward {
  Unit unit;
  const float *x, *deviation, *weight, *scale, *grad_y;
  const float* norm_weight;  // null without a batch norm
  const double* moments;
  const float* y;  // null without a clamp
  const std::int16_t* dots;
  float lo, hi;
  bool add_residual;
  float* grad_x;  // may be null
  float* grad_weight;
  float* grad_scale;     // may be null
  float* grad_norm;      // 2 x cout: of the batch norm's weight and bias
  float* grad_residual;  // may be null
};

void backward(const Kernels& kernels, const UnitBackward& b, int threads);

// The kernels of an instruction set, or the best ones for this CPU if it is empty; portable ones where it has none.
const Kernels& choose_kernels(const std::string& isa);

}  // namespace ovsw::train
