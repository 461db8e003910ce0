#include "csrc/train/unit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/base/error.h"
#include "csrc/base/per_process.h"
#include "csrc/base/thread_pool.h"
#include "csrc/plan/plan.h"

namespace ovsw::train {
namespace {

constexpr int kShares = 8;  // a batch is cut into so many, whatever the number of threads

// One job at a time, on threads that stay.
class Workers {
 public:
  explicit Workers(int threads) : shared_(all_.get()), lock_(shared_.mutex) {
    if (!shared_.pool || shared_.pool->threads() != threads) {
      shared_.pool.reset();
      shared_.pool = std::make_unique<ThreadPool>(threads);
    }
  }

  // fn(share, first, last, thread) for equal shares of `count` things.
  template <typename Fn>
  void share(int count, Fn&& fn) {
    const int shares = std::min(count, kShares);
    shared_.pool->run(shares, [&](std::int64_t s, int thread) {
      fn(int(s), int(count * s / shares), int(count * (s + 1) / shares), thread);
    });
  }

  int threads() const { return shared_.pool->threads(); }

 private:
  struct Shared {
    std::mutex mutex;
    std::unique_ptr<ThreadPool> pool;
  };

  // Never destroyed: when the process ends a thread may still be at work.
  static PerProcess<Shared>& all_;

  Shared& shared_;
  std::lock_guard<std::mutex> lock_;
};

PerProcess<Workers::Shared>& Workers::all_ = *new PerProcess<Workers::Shared>;

// Where in the 16 sums each filter's signs point: block of channels, filter, window row, group of four, window column.
// Backwards output channels are summed over; with stride 1 the window is then turned around.
std::vector<std::uint16_t> sign_offsets(const Unit& u, const float* weight, bool backwards) {
  const int channels = backwards ? u.cout : u.cin, filters = backwards ? u.cin : u.cout;
  const bool turned = backwards && u.stride == 1;
  std::vector<std::uint16_t> offsets(u.offsets());
  std::uint16_t* to = offsets.data();
  for (int block = 0; block < channels; block += kBlock) {
    for (int f = 0; f < filters; ++f) {
      for (int tap = 0; tap < 9; tap += 3) {
        for (int c = block; c < block + kBlock; c += 4) {
          for (int kx = 0; kx < 3; ++kx) {
            const int at = turned ? 8 - tap - kx : tap + kx;
            int index = 0;
            for (int j = 0; j < 4; ++j) {
              const std::size_t o = std::size_t(backwards ? c + j : f), i = std::size_t(backwards ? f : c + j);
              index |= int(weight[(o * std::size_t(u.cin) + i) * 9 + std::size_t(at)] >= 0) << j;
            }
            *to++ = std::uint16_t(index * kRowBytes);
          }
        }
      }
    }
  }
  return offsets;
}

}  // namespace

const Kernels& choose_kernels(const std::string& isa) {
  const std::string table = choose_table(isa).name;
  const Kernels* portable = nullptr;
  for (const Kernels* const* k = all_kernels(); *k; ++k) {
    if (table == (*k)->name) return **k;
    if (std::string("portable") == (*k)->name) portable = *k;
  }
  return *portable;
}

bool forward(const Kernels& kernels, const UnitForward& f, int threads) {
  const Unit& u = f.unit;
  const std::size_t weights = std::size_t(u.cin) * std::size_t(u.cout) * 9;
  if (f.zeros_matter && std::find(f.weight, f.weight + weights, 0.0f) != f.weight + weights) return false;
  const std::vector<std::uint16_t> offsets = sign_offsets(u, f.weight, false);
  const std::size_t channels = std::size_t(u.cout), images = std::size_t(u.n);
  std::vector<std::int64_t> sums(images * channels * 2), zeros(images);
  const Forward task{u, f.x, offsets.data(), f.dots, f.deviation, sums.data(), zeros.data(), f.eps};
  Workers workers(threads);
  const Buffer scratch(kernels.forward_scratch(u) * std::size_t(threads));
  workers.share(u.packs(kShorts), [&](int, int first, int last, int thread) {
    kernels.forward(task, first, last, scratch.data() + std::size_t(thread) * kernels.forward_scratch(u));
  });
  if (f.zeros_matter && std::any_of(zeros.begin(), zeros.end(), [](std::int64_t n) { return n > 0; })) return false;
  std::vector<float> a(channels), b(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    a[c] = f.scale[c];
    if (!f.norm) continue;
    double total = 0, squares = 0;  // whole numbers far below 2^53
    for (std::size_t i = 0; i < images; ++i) {
      total += double(sums[(i * channels + c) * 2]);
      squares += double(sums[(i * channels + c) * 2 + 1]);
    }
    const double n = double(images * u.out_pixels()), scale = f.scale[c], mean = total / n;
    f.moments[c] = mean;
    f.moments[2 * channels + c] = std::max(0.0, squares / n - mean * mean);
    const double variance = scale * scale * f.moments[2 * channels + c];
    const double inverse = 1 / std::sqrt(variance + f.norm->eps), slope = f.norm->weight[c] * inverse * scale;
    f.moments[channels + c] = inverse;
    a[c] = float(slope);
    b[c] = float(f.norm->bias[c] - slope * mean);
    if (f.norm->running_mean) {
      const double m = f.norm->momentum;
      f.norm->running_mean[c] = float((1 - m) * f.norm->running_mean[c] + m * scale * mean);
      f.norm->running_var[c] = float((1 - m) * f.norm->running_var[c] + m * variance * n / (n - 1));
    }
  }
  const Maps maps{u.n, u.cout, u.out_pixels()};
  workers.share(u.n, [&](int, int first, int last, int) {
    kernels.apply(maps, f.dots, a.data(), b.data(), f.residual, f.lo, f.hi, f.y, first, last);
  });
  return true;
}

void backward(const Kernels& kernels, const UnitBackward& t, int threads) {
  const Unit& u = t.unit;
  const std::size_t channels = std::size_t(u.cout), images = std::size_t(u.n);
  const std::size_t weights = std::size_t(u.cin) * channels * 9;
  std::vector<float> scale(t.scale, t.scale + channels), slope, offset;
  Workers workers(threads);
  if (t.norm_weight || t.grad_scale || t.grad_residual) {
    std::vector<double> sums(images * channels * 2);
    const Maps maps{u.n, u.cout, u.out_pixels()};
    workers.share(u.n, [&](int, int first, int last, int) {
      kernels.reduce(maps, t.grad_y, t.y, t.dots, t.lo, t.hi, sums.data(), t.grad_residual, first, last);
    });
    slope.resize(channels), offset.resize(channels);
    for (std::size_t c = 0; c < channels; ++c) {
      double total = 0, product = 0;  // of g, and of g * dot
      for (std::size_t i = 0; i < images; ++i) {
        total += sums[(i * channels + c) * 2];
        product += sums[(i * channels + c) * 2 + 1];
      }
      if (!t.norm_weight) {
        if (t.grad_scale) t.grad_scale[c] = float(product);
        continue;
      }
      // With z = (scale * dot - mean) * inverse, the norm's gradients are sum(g * z) and sum(g), and that of
      // scale * dot is weight * inverse * (g - mean(g) - z * mean(g * z)).
      const double n = double(images * u.out_pixels()), s = t.scale[c], mean = t.moments[c];
      const double inverse = t.moments[channels + c], of_weight = s * inverse * (product - mean * total);
      t.grad_norm[c] = float(of_weight), t.grad_norm[channels + c] = float(total);
      const double steep = t.norm_weight[c] * inverse;
      scale[c] = float(s * steep);
      slope[c] = float(-s * s * steep * inverse * of_weight / n);
      offset[c] = float(-s * steep * total / n - double(slope[c]) * mean);
      if (t.grad_scale) {  // the sum of dot times that gradient; sum(z * dot) = n * scale * inverse * variance of dot
        const double of_z = of_weight * inverse * s * t.moments[2 * channels + c];
        t.grad_scale[c] = float(steep * (product - mean * total - of_z));
      }
    }
    if (!t.norm_weight) slope.clear();
  }
  const std::vector<std::uint16_t> offsets = sign_offsets(u, t.weight, true);
  const Backward task{u,
                      t.x,
                      t.deviation,
                      t.grad_y,
                      t.y,
                      t.dots,
                      scale.data(),
                      slope.empty() ? nullptr : slope.data(),
                      offset.data(),
                      t.lo,
                      t.hi,
                      offsets.data(),
                      t.grad_x,
                      t.add_residual};
  const int packs = u.packs(kFloats), shares = std::min(packs, kShares);
  const Buffer scratch(kernels.backward_scratch(u) * std::size_t(threads));
  const Buffer partial(weights * std::size_t(shares) * sizeof(float));
  float* parts = partial.as<float>();
  workers.share(packs, [&](int share, int first, int last, int thread) {
    float* part = parts + std::size_t(share) * weights;
    std::memset(part, 0, weights * sizeof(float));
    kernels.backward(task, first, last, part, scratch.data() + std::size_t(thread) * kernels.backward_scratch(u));
  });
  for (std::size_t o = 0; o < channels; ++o) {
    for (std::size_t i = 0; i < std::size_t(u.cin); ++i) {
      for (std::size_t tap = 0; tap < 9; ++tap) {
        const std::size_t at =
            (((o / kBlock * 3 + tap / 3) * std::size_t(u.cin) + i) * 3 + tap % 3) * kBlock + o % kBlock;
        float sum = 0;
        for (std::size_t s = 0; s < std::size_t(shares); ++s) sum += parts[s * weights + at];
        t.grad_weight[(o * std::size_t(u.cin) + i) * 9 + tap] = sum;
      }
    }
  }
}

}  // namespace ovsw::train
