// Kernels that combine or rearrange maps: products, concatenation, gathered and interpolated pixels, softmax, and the
// conversion from integers to float. Each computes one pixel's channels in scratch.

#include "kernels/portable/epilogue.h"
#include "kernels/portable/kernels.h"
#include "kernels/portable/scaling.h"

namespace ovsw::OVSW_ISA::portable {
namespace {

// A multiple of what vectors hold, for channels of any type.
template <typename T>
std::size_t room(const Shape& s) {
  return padded(s.out_c) * sizeof(T);
}

// The arguments of an op whose residual is its second operand, for the epilogue, which refers to them.
KernelArgs without_residual(const KernelArgs& args) {
  KernelArgs rest = args;
  rest.residual = View{};
  return rest;
}

// The channels of gather, as runs of consecutive ones: packed is [channels, rows, columns, number of runs, runs].
struct Run {
  std::int32_t to, from, count;  // from -1: pad_value
};

constexpr int kShortRun = 4;  // channels; shorter ones are faster one by one

struct GatherWeights {
  const std::int32_t *channels, *rows, *columns;
  const Run* runs;
  int run_count;

  GatherWeights(const Shape& s, const void* packed) : channels(static_cast<const std::int32_t*>(packed)) {
    rows = channels + s.out_c;
    columns = rows + s.out_h;
    run_count = columns[s.out_w];
    runs = reinterpret_cast<const Run*>(columns + s.out_w + 1);
  }
};

template <typename T>
void take_channels(const GatherWeights& w, int channels, const T* from, T pad, T* to) {
  if (w.run_count * kShortRun > channels) {
    for (int c = 0; c < channels; ++c) to[c] = w.channels[c] < 0 ? pad : from[w.channels[c]];
    return;
  }
  for (int r = 0; r < w.run_count; ++r) {
    const Run& run = w.runs[r];
    if (run.from < 0) {
      for (int c = 0; c < run.count; ++c) to[run.to + c] = pad;
    } else {
      std::memcpy(to + run.to, from + run.from, std::size_t(run.count) * sizeof(T));
    }
  }
}

// Where bilinear takes a row or column from: two of them, and the share of the second one.
struct Pair {
  std::int64_t first, second;
  std::int32_t share;

  Pair(const std::int32_t* weights, int i)
      : first(weights[2 * i]), second(first + (weights[2 * i + 1] != 0)), share(weights[2 * i + 1]) {}
};

template <Numerics N>
struct Interpolated {
  using Type = double;
};
template <>
struct Interpolated<Numerics::kInteger> {
  using Type = std::int32_t;
};

void interpolate(const float* a, const float* b, const float* c, const float* d, std::int32_t y, std::int32_t x, int n,
                 double* to) {
  constexpr double kOne = 1 << 30;
  const double fy = y / kOne, fx = x / kOne;
  for (int i = 0; i < n; ++i) {
    to[i] = (1 - fy) * ((1 - fx) * a[i] + fx * b[i]) + fy * ((1 - fx) * c[i] + fx * d[i]);
  }
}

// In double, where products and sums of at most 15 + 28 bits are exact.
void interpolate(const std::int16_t* a, const std::int16_t* b, const std::int16_t* c, const std::int16_t* d,
                 std::int32_t y, std::int32_t x, int n, std::int32_t* to) {
  constexpr int kOne = 1 << 14;
  const int gy = y >> 16, gx = x >> 16;
  const double wa = (kOne - gy) * (kOne - gx), wb = (kOne - gy) * gx, wc = gy * (kOne - gx), wd = gy * gx;
  for (int i = 0; i < n; ++i) {
    const double q = (wa * a[i] + wb * b[i] + wc * c[i] + wd * d[i] + (1 << 27)) / (1 << 28);
    const auto whole = std::int32_t(q);
    to[i] = whole - (double(whole) > q);
  }
}

// In 64 bits: products and sums have at most 31 + 28 of them.
void interpolate(const std::int32_t* a, const std::int32_t* b, const std::int32_t* c, const std::int32_t* d,
                 std::int32_t y, std::int32_t x, int n, std::int32_t* to) {
  constexpr int kOne = 1 << 14;
  const std::int64_t gy = y >> 16, gx = x >> 16;
  const std::int64_t wa = (kOne - gy) * (kOne - gx), wb = (kOne - gy) * gx, wc = gy * (kOne - gx), wd = gy * gx;
  for (int i = 0; i < n; ++i) {
    to[i] = std::int32_t((wa * a[i] + wb * b[i] + wc * c[i] + wd * d[i] + (1 << 27)) >> 28);
  }
}

// The exponentials of a pixel relative to its largest channel, and their sum.
struct Exponentials {
  double most, total;

  Exponentials(const float* x, int channels, double* to) : most(double(x[0])), total(0) {
    for (int c = 1; c < channels; ++c) most = double(x[c]) > most ? double(x[c]) : most;
    for (int c = 0; c < channels; ++c) to[c] = exponential(double(x[c]) - most);
    for (int c = 0; c < channels; ++c) total += to[c];
  }
};

}  // namespace

template <>
void Mul<Numerics::kFloat>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const KernelArgs rest = without_residual(args);
  const Epilogue<Numerics::kFloat> epilogue(rest);
  const int channels = args.shape.out_c;
  const auto* in = static_cast<const float*>(args.in.data);
  const auto* other = static_cast<const float*>(args.residual.data);
  auto* product = static_cast<double*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const float *x = in + pixel * channels, *r = other + (args.per_channel ? 0 : pixel * channels);
    for (int c = 0; c < channels; ++c) product[c] = double(x[c]) * double(r[c]);
    finish_pixel_call(epilogue, product, pixel, 0, channels);
  }
}

namespace {

// Products of an i32, in 64 bits.
void multiply_wide(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const KernelArgs rest = without_residual(args);
  const Epilogue<Numerics::kInteger> epilogue(rest);
  const int channels = args.shape.out_c;
  const auto* in = static_cast<const std::int32_t*>(args.in.data);
  const auto* other = static_cast<const std::int16_t*>(args.residual.data);
  const auto* scale = args.constant<std::int16_t>(kScale);
  const auto* shift = args.constant<std::int32_t>(kShift);
  const std::int32_t* base = args.border.base;
  auto* product = static_cast<std::int32_t*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const std::int32_t* x = in + pixel * channels;
    const std::int16_t* r = other + (args.per_channel ? 0 : pixel * channels);
    for (int c = 0; c < channels; ++c) {
      product[c] = std::int32_t((std::int64_t(scale[c] * r[c]) * x[c] + kOffsetUnit * base[c]) >> shift[c]);
    }
    finish_pixel_call(epilogue, product, pixel, 0, channels);
  }
}

}  // namespace

template <>
void Mul<Numerics::kInteger>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (args.in.kind == Element::kI32) return multiply_wide(args, begin, end, scratch);
  const KernelArgs rest = without_residual(args);
  const Epilogue<Numerics::kInteger> epilogue(rest);
  const int channels = args.shape.out_c;
  const auto* in = static_cast<const std::int16_t*>(args.in.data);
  const auto* other = static_cast<const std::int16_t*>(args.residual.data);
  auto* product = static_cast<std::int32_t*>(scratch);
  std::memset(product, 0, room<std::int32_t>(args.shape));
  const Scaling scaling(args, std::int64_t(1) << 30, product + padded(channels));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const std::int16_t *x = in + pixel * channels, *r = other + (args.per_channel ? 0 : pixel * channels);
    for (int c = 0; c < channels; ++c) product[c] = x[c] * r[c];
    scaling.apply(product);
    finish_pixel(epilogue, product, pixel, 0, channels);
  }
}

namespace {

template <Numerics N, typename T>
void run_concat(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const KernelArgs rest = without_residual(args);
  const Epilogue<N> epilogue(rest);
  const int other = s.out_c - s.in_c;
  const auto *in = static_cast<const T*>(args.in.data), *residual = static_cast<const T*>(args.residual.data);
  auto* both = static_cast<T*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::memcpy(both, in + pixel * s.in_c, std::size_t(s.in_c) * sizeof(T));
    std::memcpy(both + s.in_c, residual + pixel * other, std::size_t(other) * sizeof(T));
    finish_pixel_call(epilogue, both, pixel, 0, s.out_c);
  }
}

}  // namespace

template <Numerics N>
void Concat<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  with_input<N>(args, [&](auto x) { run_concat<N, decltype(x)>(args, begin, end, scratch); });
}

template <Numerics N>
std::size_t Gather<N>::packed_bytes(const Shape& s) {
  return std::size_t(s.out_c + s.out_h + s.out_w + 1) * sizeof(std::int32_t) + std::size_t(s.out_c) * sizeof(Run);
}

template <Numerics N>
void Gather<N>::pack(const Shape& s, const void* weights, void* packed) {
  const auto* channels = static_cast<const std::int32_t*>(weights);
  const int indices = s.out_c + s.out_h + s.out_w;
  auto* to = static_cast<std::int32_t*>(packed);
  std::memset(packed, 0, packed_bytes(s));
  std::memcpy(to, weights, std::size_t(indices) * sizeof(std::int32_t));
  auto* runs = reinterpret_cast<Run*>(to + indices + 1);
  int count = 0;
  for (int c = 0; c < s.out_c; ++c) {
    Run* last = count > 0 ? runs + count - 1 : nullptr;
    const std::int32_t from = channels[c];
    if (last && (from < 0 ? last->from < 0 : last->from >= 0 && from == last->from + last->count)) {
      ++last->count;
    } else {
      runs[count++] = {c, from, 1};
    }
  }
  to[indices] = count;
}

template <Numerics N>
std::size_t Gather<N>::scratch_bytes(const Shape& s) {
  return room<float>(s);  // or numbers of at most 32 bits
}

namespace {

template <Numerics N, typename T>
void run_gather(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<N> epilogue(args);
  const GatherWeights w(s, args.weights);
  const auto pad = T(args.pad_value);
  const auto* in = static_cast<const T*>(args.in.data);
  auto* taken = static_cast<T*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const std::int32_t y = w.rows[int(pixel) / s.out_w], x = w.columns[int(pixel) % s.out_w];
    if (y < 0 || x < 0) {
      for (int c = 0; c < s.out_c; ++c) taken[c] = pad;
    } else {
      take_channels(w, s.out_c, in + (std::int64_t(y) * s.in_w + x) * s.in_c, pad, taken);
    }
    finish_pixel_call(epilogue, taken, pixel, 0, s.out_c);
  }
}

}  // namespace

template <Numerics N>
void Gather<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  with_input<N>(args, [&](auto x) { run_gather<N, decltype(x)>(args, begin, end, scratch); });
}

template <Numerics N>
std::size_t Bilinear<N>::packed_bytes(const Shape& s) {
  return 2 * std::size_t(s.out_h + s.out_w) * sizeof(std::int32_t);
}

template <Numerics N>
void Bilinear<N>::pack(const Shape& s, const void* weights, void* packed) {
  std::memcpy(packed, weights, packed_bytes(s));
}

template <Numerics N>
std::size_t Bilinear<N>::scratch_bytes(const Shape& s) {
  return room<double>(s);
}

namespace {

template <Numerics N, typename T>
void run_bilinear(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  using Acc = typename Interpolated<N>::Type;
  const Shape& s = args.shape;
  const Epilogue<N> epilogue(args);
  const auto *rows = static_cast<const std::int32_t*>(args.weights), *columns = rows + 2 * s.out_h;
  const auto* in = static_cast<const T*>(args.in.data);
  auto* acc = static_cast<Acc*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const Pair y(rows, int(pixel) / s.out_w), x(columns, int(pixel) % s.out_w);
    const auto at = [&](std::int64_t row, std::int64_t column) { return in + (row * s.in_w + column) * s.in_c; };
    interpolate(at(y.first, x.first), at(y.first, x.second), at(y.second, x.first), at(y.second, x.second), y.share,
                x.share, s.in_c, acc);
    finish_pixel_call(epilogue, acc, pixel, 0, s.out_c);
  }
}

}  // namespace

template <Numerics N>
void Bilinear<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  with_input<N>(args, [&](auto x) { run_bilinear<N, decltype(x)>(args, begin, end, scratch); });
}

void Softmax::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const int channels = args.shape.out_c;
  auto* powers = static_cast<double*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const Exponentials e(static_cast<const float*>(args.in.data) + pixel * channels, channels, powers);
    float* out = static_cast<float*>(args.out.data) + pixel * channels;
    for (int c = 0; c < channels; ++c) out[c] = float(powers[c] / e.total);
  }
}

void LogSoftmax::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const int channels = args.shape.out_c;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const float* x = static_cast<const float*>(args.in.data) + pixel * channels;
    const Exponentials e(x, channels, static_cast<double*>(scratch));
    const double log = logarithm(e.total);
    float* out = static_cast<float*>(args.out.data) + pixel * channels;
    for (int c = 0; c < channels; ++c) out[c] = float((double(x[c]) - e.most) - log);
  }
}

void ToFloat::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void*) {
  const int channels = args.shape.out_c;
  const auto *scale = args.constant<double>(kScale), *offset = args.constant<double>(kOffset);
  with_input<Numerics::kInteger>(args, [&](auto number) {
    using T = decltype(number);
    for (std::int64_t pixel = begin; pixel < end; ++pixel) {
      const auto* x = static_cast<const T*>(args.in.data) + pixel * channels;
      float* out = static_cast<float*>(args.out.data) + pixel * channels;
      for (int c = 0; c < channels; ++c) out[c] = float((double(x[c]) + offset[c]) * scale[c]);
    }
  });
}

template struct Concat<Numerics::kFloat>;
template struct Concat<Numerics::kInteger>;
template struct Gather<Numerics::kFloat>;
template struct Gather<Numerics::kInteger>;
template struct Bilinear<Numerics::kFloat>;
template struct Bilinear<Numerics::kInteger>;

}  // namespace ovsw::OVSW_ISA::portable
