#include "csrc/train/method.h"

#include <algorithm>
#include <cmath>

#include "csrc/train/workers.h"

namespace ovsw::train {
namespace {

constexpr std::size_t kLanes = 16;  // partial sums, so that the compiler can use vectors

template <typename Fn>
double sum_of(std::size_t count, Fn&& fn) {
  double total = 0;
  for (std::size_t start = 0; start < count; start += 256) {
    const std::size_t end = std::min(count, start + 256);
    float sums[kLanes] = {};
    std::size_t i = start;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::size_t k = 0; k < kLanes; ++k) sums[k] += fn(i + k);
    }
    for (; i < end; ++i) sums[0] += fn(i);
    for (float s : sums) total += double(s);
  }
  return total;
}

double norm_of(const float* v, std::size_t count) {
  return std::sqrt(sum_of(count, [v](std::size_t i) { return v[i] * v[i]; }));
}

int sign_of(float v) { return (v > 0) - (v < 0); }

}  // namespace

void derived_scale(const float* weight, std::size_t filters, std::size_t size, double eps, float* scale) {
  for (std::size_t f = 0; f < filters; ++f, weight += size) {
    const float* w = weight;
    const float mean = float(sum_of(size, [w](std::size_t i) { return w[i]; }) / double(size));
    const double squares = sum_of(size, [w, mean](std::size_t i) { return (w[i] - mean) * (w[i] - mean); });
    const double sizes = sum_of(size, [w, mean](std::size_t i) { return std::fabs(w[i] - mean); });
    scale[f] = float(sizes / double(size) / std::sqrt(squares / (double(size) - 1) + eps));
  }
}

OvSWCounts ovsw_step(const OvSWStep& step, const OvSWLayer& layer) {
  OvSWCounts counts{0, 0, 0};
  for (std::size_t f = 0; f < layer.filters; ++f) {
    const std::size_t at = f * layer.size;
    const float* w = layer.weight + at;
    float* g = layer.grad ? layer.grad + at : nullptr;
    if (step.ags && g) {
      const float grad_norm = std::max(float(norm_of(g, layer.size)), step.min_grad_norm);
      const float weight_norm = std::max(float(norm_of(w, layer.size)), step.min_weight_norm);
      const float ratio = grad_norm / weight_norm;
      counts.ratio += double(ratio) / double(layer.filters);
      if (ratio < step.lam) {
        const float factor = step.lam * weight_norm / grad_norm;
        for (std::size_t i = 0; i < layer.size; ++i) g[i] *= factor;
      }
    }
    if (!step.sad) continue;
    const float* now = layer.sign_of + at;
    float *rate = layer.rate + at, *before = layer.before + at;
    std::uint8_t* ever = layer.ever + at;
    std::int32_t silent = 0, flipped = 0;
    for (std::size_t i = 0; i < layer.size; ++i) {
      const bool flip = sign_of(now[i]) != sign_of(before[i]);
      rate[i] = rate[i] * step.momentum + (flip ? 1 - step.momentum : 0.0f);
      const bool quiet = rate[i] < step.sigma;
      if (g) g[i] += quiet ? step.gamma * w[i] : 0.0f;
      ever[i] = std::uint8_t(ever[i] | flip);
      before[i] = now[i];
      silent += quiet, flipped += flip;
    }
    counts.silent += silent, counts.flipped += flipped;
  }
  return counts;
}

void shortcut_forward(const Shortcut& s, const float* x, float* y, int threads) {
  const std::size_t ho = std::size_t(s.h / 2), wo = std::size_t(s.w / 2), w = std::size_t(s.w), size = ho * wo;
  Workers workers(threads);
  workers.share(s.n, [&](int, int first, int last, int) {
    for (int map = first * s.cout; map < last * s.cout; ++map) {
      float* to = y + std::size_t(map) * size;
      const int c = map % s.cout - s.before;
      if (c < 0 || c >= s.cin) {
        std::fill(to, to + size, 0.0f);
        continue;
      }
      const float* from = x + std::size_t(map / s.cout * s.cin + c) * std::size_t(s.h) * w;
      for (std::size_t row = 0; row < ho; ++row, from += 2 * w, to += wo) {
        const float* below = from + w;
        if (s.average) {
          for (std::size_t i = 0; i < wo; ++i) {
            to[i] = 0.25f * ((from[2 * i] + from[2 * i + 1]) + (below[2 * i] + below[2 * i + 1]));
          }
        } else {
          for (std::size_t i = 0; i < wo; ++i) to[i] = from[2 * i];
        }
      }
    }
  });
}

void shortcut_backward(const Shortcut& s, const float* grad_y, float* grad_x, int threads) {
  const std::size_t ho = std::size_t(s.h / 2), wo = std::size_t(s.w / 2), w = std::size_t(s.w);
  Workers workers(threads);
  workers.share(s.n, [&](int, int first, int last, int) {
    for (int map = first * s.cin; map < last * s.cin; ++map) {
      const float* from = grad_y + std::size_t(map / s.cin * s.cout + s.before + map % s.cin) * ho * wo;
      float* to = grad_x + std::size_t(map) * std::size_t(s.h) * w;
      for (std::size_t row = 0; row < ho; ++row, from += wo, to += 2 * w) {
        float* below = to + w;
        for (std::size_t i = 0; i < wo; ++i) {
          const float v = s.average ? 0.25f * from[i] : from[i], other = s.average ? v : 0.0f;
          to[2 * i] = v, to[2 * i + 1] = below[2 * i] = below[2 * i + 1] = other;
        }
      }
    }
  });
}

}  // namespace ovsw::train
