#include "csrc/train/unit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/plan/plan.h"
#include "csrc/train/workers.h"

namespace ovsw::train {
namespace {

constexpr std::uint16_t kAllPlus = 15 * kRowBytes;  // the sum whose four signs are all +1

// For each filter, which of the 16 sums its signs select: [block of channels][filter][window row][group of four][window
// column]. Backwards the sum is over output channels, and with stride 1 the window is turned around. `ones` adds a
// filter of +1.
std::vector<std::uint16_t> sign_offsets(const Convolution& conv, bool backwards, bool ones) {
  const Unit& u = conv.unit;
  const int channels = backwards ? u.cout : u.cin, filters = backwards ? u.cin : u.cout;
  const bool turned = backwards && u.stride == 1;
  constexpr int groups = kBlock / 4, taps = 9 * groups;
  const std::size_t of_input = 9, of_output = 9 * std::size_t(u.cin);
  const std::size_t of_channel = backwards ? of_output : of_input, of_filter = backwards ? of_input : of_output;
  std::vector<std::uint16_t> offsets(std::size_t(channels / kBlock) * std::size_t(filters + ones) * taps, kAllPlus);
  std::uint16_t* to = offsets.data();
  for (int block = 0; block < channels; block += kBlock, to += ones ? taps : 0) {
    for (int f = 0; f < filters; ++f, to += taps) {
      for (int g = 0; g < groups; ++g) {
        const float* w = conv.weight + std::size_t(f) * of_filter + std::size_t(block + 4 * g) * of_channel;
        std::uint16_t index[9] = {};
        for (std::size_t j = 0; j < 4; ++j, w += of_channel) {
          for (int tap = 0; tap < 9; ++tap) index[tap] |= std::uint16_t(w[tap] >= 0 ? kRowBytes << j : 0);
        }
        for (int tap = 0; tap < 9; ++tap) to[tap / 3 * 3 * groups + g * 3 + tap % 3] = index[turned ? 8 - tap : tap];
      }
    }
  }
  return offsets;
}

// Per output channel and tap: the sum of (w + ratio) over input channels.
std::vector<float> tap_sums(const Convolution& conv) {
  const Unit& u = conv.unit;
  std::vector<float> sums(std::size_t(u.cout) * 9);
  for (std::size_t o = 0; o < std::size_t(u.cout); ++o) {
    for (std::size_t i = 0; i < std::size_t(u.cin) * 9; ++i) {
      sums[o * 9 + i % 9] += (conv.weight[o * std::size_t(u.cin) * 9 + i] >= 0 ? 1.0f : -1.0f) + conv.ratio[o];
    }
  }
  return sums;
}

// Per output channel and pixel: the sum of (w + ratio) * level over the taps inside the image.
std::vector<float> border_map(const Convolution& conv) {
  const Unit& u = conv.unit;
  const std::vector<float> sums = tap_sums(conv);
  std::vector<float> map;
  map.reserve(u.out_size());
  for (int o = 0; o < u.cout; ++o) {
    for (int y = 0; y < u.out_h(); ++y) {
      for (int x = 0; x < u.out_w(); ++x) {
        float sum = 0;
        for (int tap = 0; tap < 9; ++tap) {
          const int row = u.stride * y + tap / 3 - 1, column = u.stride * x + tap % 3 - 1;
          if (row >= 0 && row < u.h && column >= 0 && column < u.w) sum += sums[std::size_t(o * 9 + tap)];
        }
        map.push_back(conv.level * sum);
      }
    }
  }
  return map;
}

Maps maps_of(const Unit& u, const std::int16_t* dots, const float* z) {
  return {u.n, u.cout, u.out_pixels(), z ? nullptr : dots, z};
}

// Sum over images of a column of `width` sums per image and channel.
double total(const std::vector<double>& sums, const Maps& m, std::size_t channel, std::size_t column,
             std::size_t width) {
  double sum = 0;
  for (std::size_t i = 0; i < std::size_t(m.n); ++i) sum += sums[(i * std::size_t(m.c) + channel) * width + column];
  return sum;
}

// Scale and batch norm as a and b of kernels.h, from the statistics of the batch or the running ones. `moments` is that
// of UnitForward; `scales` may be null for 1.
struct Folded {
  std::vector<float> a, b;

  Folded(const Maps& m, const float* scales, const Norm* norm, const std::vector<double>& sums, double* moments)
      : a(std::size_t(m.c), 1.0f), b(a.size()) {
    const std::size_t channels = a.size();
    for (std::size_t c = 0; c < channels; ++c) {
      const double scale = scales ? double(scales[c]) : 1.0;
      a[c] = float(scale);
      if (norm && norm->training) {
        const double n = double(m.n) * double(m.pixels);
        const double mean = total(sums, m, c, 0, 2) / n, square = total(sums, m, c, 1, 2) / n;
        const double of_z = std::max(0.0, square - mean * mean), variance = scale * scale * of_z;
        const double inverse = 1 / std::sqrt(variance + norm->eps), slope = norm->weight[c] * inverse * scale;
        moments[c] = mean, moments[channels + c] = inverse, moments[2 * channels + c] = of_z;
        a[c] = float(slope), b[c] = float(norm->bias[c] - slope * mean);
        if (norm->running_mean) {
          const double k = norm->momentum;
          norm->running_mean[c] = float((1 - k) * norm->running_mean[c] + k * scale * mean);
          norm->running_var[c] = float((1 - k) * norm->running_var[c] + k * variance * n / (n - 1));
        }
      } else if (norm) {
        const double slope = norm->weight[c] / std::sqrt(norm->running_var[c] + norm->eps);
        a[c] = float(slope * scale), b[c] = float(norm->bias[c] - slope * norm->running_mean[c]);
      }
      moments[3 * channels + c] = double(a[c]), moments[4 * channels + c] = double(b[c]);
    }
  }
};

// Scale and batch norm backwards: the terms of the gradient of z, and the gradients of their parameters.
struct Unfolded {
  std::vector<float> scale, slope, offset;

  // `sums` are those of `Reduce`; grad_scale may be null.
  Unfolded(const Maps& m, const float* scales, const float* norm_weight, const double* moments,
           const std::vector<double>& sums, float* grad_scale, float* grad_norm)
      : scale(std::size_t(m.c), 1.0f), slope(scale.size()), offset(scale.size()) {
    const std::size_t channels = scale.size();
    for (std::size_t c = 0; c < channels; ++c) {
      const double of_g = total(sums, m, c, 0, kSums), product = total(sums, m, c, 1, kSums);  // of g, and of g * z
      const double s = scales ? double(scales[c]) : 1.0;
      scale[c] = float(s);
      if (!norm_weight) {
        if (grad_scale) grad_scale[c] = float(product);
        continue;
      }
      // With q = (scale * z - mean) * inverse, the norm's gradients are sum(g * q) and sum(g), and that of scale * z is
      // weight * inverse * (g - mean(g) - q * mean(g * q)).
      const double n = double(m.n) * double(m.pixels), mean = moments[c], inverse = moments[channels + c];
      const double of_weight = s * inverse * (product - mean * of_g), steep = norm_weight[c] * inverse;
      grad_norm[c] = float(of_weight), grad_norm[channels + c] = float(of_g);
      scale[c] = float(s * steep);
      slope[c] = float(-s * s * steep * inverse * of_weight / n);
      offset[c] = float(-s * steep * of_g / n - double(slope[c]) * mean);
      if (grad_scale) {  // the sum of z times that gradient; sum(q * z) = n * scale * inverse * variance of z
        const double of_q = of_weight * inverse * s * moments[2 * channels + c];
        grad_scale[c] = float(steep * (product - mean * of_g - of_q));
      }
    }
    if (!norm_weight) slope.clear();
  }

  const float* slopes() const { return slope.empty() ? nullptr : slope.data(); }
};

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
  const Convolution& conv = f.conv;
  const Unit& u = conv.unit;
  const std::size_t channels = std::size_t(u.cout), images = std::size_t(u.n),
                    weights = channels * std::size_t(u.cin) * 9;
  if (f.zeros_matter && std::find(conv.weight, conv.weight + weights, 0.0f) != conv.weight + weights) return false;
  Workers workers(threads);

  std::vector<double> of_input(2 * images);
  std::vector<std::int64_t> zeros(images);
  const Input input{conv.x, conv.shift, f.bits, of_input.data(), zeros.data()};
  workers.share(u.n, [&](int, int first, int last, int) { kernels.measure(u, input, first, last); });
  if (f.zeros_matter && std::any_of(zeros.begin(), zeros.end(), [](std::int64_t n) { return n > 0; })) return false;
  for (std::size_t i = 0; i < images && f.measure; ++i) {
    const double n = double(u.in_size()), mean = of_input[2 * i] / n;
    const double squares = std::max(0.0, of_input[2 * i + 1] - of_input[2 * i] * mean);
    f.deviation[i] = float(std::sqrt(squares / (n - 1) + double(f.eps)));
  }

  const std::vector<std::uint16_t> offsets = sign_offsets(conv, false, conv.ratio);
  std::vector<std::int64_t> of_dots(images * channels * 2);
  const Buffer windows(conv.ratio ? images * u.out_pixels() * sizeof(std::int16_t) : 0);
  const Forward task{
      u, f.bits, offsets.data(), f.dots, conv.ratio ? windows.as<std::int16_t>() : nullptr, of_dots.data()};
  const std::size_t scratch_bytes = kernels.forward_scratch(u);
  const Buffer scratch(scratch_bytes * std::size_t(threads));
  workers.share(u.packs(kSigns), [&](int, int first, int last, int thread) {
    kernels.forward(task, first, last, scratch.data() + std::size_t(thread) * scratch_bytes);
  });

  std::vector<double> sums(of_dots.begin(), of_dots.end());  // integers far below 2^53, so the conversion is exact
  if (conv.ratio) {
    const std::vector<float> border = border_map(conv);
    const TwoValued two{windows.as<std::int16_t>(), conv.ratio, border.data(), f.z, sums.data()};
    workers.share(
        u.n, [&](int, int first, int last, int) { kernels.two_valued(maps_of(u, f.dots, nullptr), two, first, last); });
  }
  const Maps maps = maps_of(u, f.dots, f.z);
  const Folded folded(maps, conv.scale, f.norm, sums, f.moments);
  const Apply apply{maps, folded.a.data(), folded.b.data(), f.residual, f.act};
  workers.share(u.n, [&](int, int first, int last, int) { kernels.apply(apply, f.y, first, last); });
  return true;
}

void backward(const Kernels& kernels, const UnitBackward& t, int threads) {
  const Convolution& conv = t.conv;
  const Unit& u = conv.unit;
  const std::size_t channels = std::size_t(u.cout), images = std::size_t(u.n), inputs = std::size_t(u.cin);
  const Maps maps = maps_of(u, t.dots, t.z);
  const bool slopes = t.act.before;
  Workers workers(threads);

  std::vector<float> a(channels), b(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    a[c] = float(t.moments[3 * channels + c]), b[c] = float(t.moments[4 * channels + c]);
  }
  std::vector<double> sums(images * channels * kSums);
  const Reduce reduce{
      {maps, a.data(), b.data(), slopes ? t.residual : nullptr, t.act}, t.y, t.grad_y, t.g, sums.data()};
  workers.share(u.n, [&](int, int first, int last, int) { kernels.reduce(reduce, first, last); });
  const float* g = t.y || slopes ? t.g : t.grad_y;
  const Unfolded unfolded(maps, conv.scale, t.norm_weight, t.moments, sums, t.grad_scale, t.grad_norm);
  for (std::size_t c = 0; c < channels && t.grad_act; ++c) {
    constexpr std::size_t columns[] = {0, 3, 4, 2};  // before, above, below, after
    for (std::size_t k = 0; k < 4; ++k) t.grad_act[k * channels + c] = float(total(sums, maps, c, columns[k], kSums));
  }

  const std::vector<std::uint16_t> offsets = sign_offsets(conv, true, false);
  std::vector<double> of_input(t.grad_shift ? images * inputs * 2 : 0);
  const Input input{conv.x, conv.shift, const_cast<std::uint32_t*>(t.bits), nullptr, nullptr};
  const GradOfZ of_z{maps, g, unfolded.scale.data(), unfolded.slopes(), unfolded.offset.data()};
  const Backward task{u,           of_z,           input,
                      t.deviation, conv.ratio,     offsets.data(),
                      t.grad_x,    t.add_residual, t.grad_shift ? of_input.data() : nullptr};
  // Each share has its own sums of weight gradients, so it should have several packs.
  const int packs = u.packs(kFloats), shares = std::clamp(packs / 4, 1, kShares);
  const std::size_t columns = std::size_t(task.grad_channels()), part = channels * columns * 9;
  const std::size_t scratch_bytes = kernels.backward_scratch(u);
  const Buffer scratch(scratch_bytes * std::size_t(threads)), partial(part * std::size_t(shares) * sizeof(float));
  workers.share(packs, shares, [&](int share, int first, int last, int thread) {
    float* sum = partial.as<float>() + std::size_t(share) * part;
    std::memset(sum, 0, part * sizeof(float));
    kernels.backward(task, first, last, sum, scratch.data() + std::size_t(thread) * scratch_bytes);
  });

  float* parts = partial.as<float>();
  for (int share = 1; share < shares; ++share) {
    const float* from = parts + std::size_t(share) * part;
    for (std::size_t i = 0; i < part; ++i) parts[i] += from[i];
  }
  const auto of_tap = [&](std::size_t o, std::size_t i, std::size_t tap) {
    return parts[(((o / kBlock * 3 + tap / 3) * columns + i) * 3 + tap % 3) * kBlock + o % kBlock];
  };
  double of_level = 0;
  for (std::size_t o = 0; o < channels; ++o) {
    float without_sign[9] = {};
    for (std::size_t tap = 0; tap < 9 && conv.ratio; ++tap) without_sign[tap] = of_tap(o, inputs, tap);
    double of_ratio = 0;
    for (std::size_t i = 0; i < inputs; ++i) {
      for (std::size_t tap = 0; tap < 9; ++tap) {
        const std::size_t at = (o * inputs + i) * 9 + tap;
        float grad = of_tap(o, i, tap);
        if (conv.ratio) {
          grad += conv.level * without_sign[tap];
          of_ratio += double(grad);
          of_level += double((conv.weight[at] >= 0 ? 1.0f : -1.0f) + conv.ratio[o]) * double(without_sign[tap]);
        }
        t.grad_weight[at] = grad;
      }
    }
    if (conv.ratio) t.grad_ratio[o] = float(of_ratio);
  }
  if (conv.ratio) t.grad_ratio[channels] = float(of_level);
  if (!t.grad_shift) return;
  double of_deviation = 0;
  for (std::size_t i = 0; i < inputs; ++i) {
    double sum = 0;
    for (std::size_t n = 0; n < images; ++n) {
      sum += of_input[(n * inputs + i) * 2];
      of_deviation -= of_input[(n * inputs + i) * 2 + 1] / double(t.deviation[n]);
    }
    t.grad_shift[i] = float(sum);
  }
  t.grad_shift[inputs] = float(of_deviation);
}

void forward(const Kernels& kernels, const NormForward& f, int threads) {
  const Maps maps{f.n, f.c, f.pixels, nullptr, f.z};
  Workers workers(threads);
  std::vector<double> sums(f.norm.training ? std::size_t(f.n) * std::size_t(f.c) * 2 : 0);
  if (f.norm.training) {
    workers.share(f.n, [&](int, int first, int last, int) { kernels.sums(maps, sums.data(), first, last); });
  }
  const Folded folded(maps, nullptr, &f.norm, sums, f.moments);
  const Apply apply{maps, folded.a.data(), folded.b.data(), nullptr, f.act};
  workers.share(f.n, [&](int, int first, int last, int) { kernels.apply(apply, f.y, first, last); });
}

void backward(const Kernels& kernels, const NormBackward& t, int threads) {
  const Maps maps{t.n, t.c, t.pixels, nullptr, t.z};
  Workers workers(threads);
  std::vector<double> sums(std::size_t(t.n) * std::size_t(t.c) * kSums);
  std::vector<float> unused(std::size_t(t.c));  // a and b, which only slopes need
  const Reduce reduce{{maps, unused.data(), unused.data(), nullptr, t.act}, t.y, t.grad_y, t.g, sums.data()};
  workers.share(t.n, [&](int, int first, int last, int) { kernels.reduce(reduce, first, last); });
  const Unfolded unfolded(maps, nullptr, t.norm_weight, t.moments, sums, nullptr, t.grad_norm);
  const GradOfZ of_z{maps, t.y ? t.g : t.grad_y, unfolded.scale.data(), unfolded.slopes(), unfolded.offset.data()};
  workers.share(t.n, [&](int, int first, int last, int) { kernels.grad_of_maps(of_z, t.grad_z, first, last); });
}

}  // namespace ovsw::train
