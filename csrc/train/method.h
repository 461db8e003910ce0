// What training does at every step apart from convolutions: scales, OvSW's step on the weights, shortcuts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovsw::train {

// Per filter, mean |w| of the standardised weight (unbiased variance plus eps).
void derived_scale(const float* weight, std::size_t filters, std::size_t size, double eps, float* scale);

// One layer's weight in OvSW: `filters` of `size` weights each.
struct OvSWLayer {
  std::size_t filters, size;
  const float* weight;
  const float* sign_of;  // the binary weight is the sign of this
  float* grad;           // may be null: then flips are only counted
  float* rate;           // running flip rate
  float* before;         // sign_of at the step before
  std::uint8_t* ever;    // whether the sign has changed at any step
};

struct OvSWStep {
  bool ags, sad;
  float lam, gamma, sigma, momentum, min_grad_norm, min_weight_norm;
};

struct OvSWCounts {
  double ratio;  // mean over filters of gradient norm / weight norm, before AGS
  std::int64_t silent, flipped;
};

OvSWCounts ovsw_step(const OvSWStep& step, const OvSWLayer& layer);

// The shortcut of a block that halves a map and adds channels: averages of 2x2 pixels, or every second pixel, with
// `before` channels of zeros in front and the rest of `cout` behind.
struct Shortcut {
  int n, cin, cout, before, h, w;
  bool average;
};

void shortcut_forward(const Shortcut& s, const float* x, float* y, int threads);
void shortcut_backward(const Shortcut& s, const float* grad_y, float* grad_x, int threads);

}  // namespace ovsw::train
