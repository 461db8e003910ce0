// Kernels without weights: pools, channel padding, and the epilogue alone. Each fills one pixel's channels in scratch.

#include "kernels/portable/epilogue.h"
#include "kernels/portable/kernels.h"
#include "kernels/portable/window.h"

namespace ovsw::OVSW_ISA::plain {
namespace {

#if defined(__AVX512F__)
constexpr int kVector = 64;
#elif defined(__AVX2__)
constexpr int kVector = 32;
#else
constexpr int kVector = 16;
#endif
template <typename T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVector)));
  static constexpr int kLanes = kVector / int(sizeof(T));
};
typedef std::int16_t Half __attribute__((vector_size(kVector / 2)));  // as many as Wide
typedef std::int32_t Wide __attribute__((vector_size(kVector)));
typedef std::int32_t Ints __attribute__((vector_size(kVector / 2)));  // as many as Doubles
typedef double Doubles __attribute__((vector_size(kVector)));

// A multiple of what any of them holds.
std::size_t padded(int channels) { return std::size_t(round_up(channels, 16)); }

template <typename T, typename U>
OVSW_INLINE T get(const U* from) {
  T vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// A window over a map of T: its first pixel, and how far it is to the next row and column.
template <typename T>
struct Taps {
  const T* first;
  int rows, columns;
  std::int64_t row, column;

  OVSW_INLINE Taps(const KernelArgs& args, std::int64_t pixel) : column(args.shape.in_c) {
    const Shape& s = args.shape;
    const Window w = window(s, int(pixel / s.out_w), int(pixel % s.out_w));
    row = column * s.in_w;
    first = static_cast<const T*>(args.in.data) + w.y * row + w.x * column;
    rows = w.rows;
    columns = w.columns;
  }

  // fn(the pixel of each tap), from channel c on
  template <typename Fn>
  OVSW_INLINE void each(int c, Fn fn) const {
    const T* in = first + c;
    for (int y = 0; y < rows; ++y, in += row) {
      const T* x = in;
      for (int i = 0; i < columns; ++i, x += column) fn(x);
    }
  }
};

// The maximum of N vectors of channels from c on. N registers, each started with the first tap.
template <int N, typename T>
OVSW_INLINE void window_max(const Taps<T>& taps, int c, T* to) {
  using Vector = typename VectorOf<T>::Type;
  Vector most[N];
  std::memcpy(most, taps.first + c, sizeof most);
  taps.each(c, [&](const T* x) OVSW_INLINE_LAMBDA {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      const auto next = get<Vector>(x + v * VectorOf<T>::kLanes);
      most[v] = next > most[v] ? next : most[v];
    }
  });
  std::memcpy(to + c, most, sizeof most);
}

// The sums of N half vectors likewise.
template <int N>
OVSW_INLINE void window_sum(const Taps<std::int16_t>& taps, int c, std::int32_t* to) {
  Wide sum[N] = {};
  taps.each(c, [&](const std::int16_t* x) OVSW_INLINE_LAMBDA {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      sum[v] += __builtin_convertvector(get<Half>(x + v * int(sizeof(Half) / sizeof *x)), Wide);
    }
  });
  std::memcpy(to + c, sum, sizeof sum);
}

// Inlined in integers, where a network may spend a tenth of its time here.
template <Numerics N, typename Acc>
OVSW_INLINE void finish(const Epilogue<N>& epilogue, const Acc* acc, std::int64_t pixel, int channels) {
  if constexpr (N == Numerics::kInteger) {
    finish_pixel(epilogue, acc, pixel, 0, channels);
  } else {
    finish_pixel_call(epilogue, acc, pixel, 0, channels);
  }
}

}  // namespace

// Sums, and three constants of average pooling, per channel.
std::size_t Weightless::scratch_bytes(const Shape& s) {
  return padded(s.out_c) * (sizeof(std::int32_t) + 3 * sizeof(double));
}

template <Numerics N>
void Maxpool<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  using T = typename Epilogue<N>::Value;
  constexpr int kLanes = VectorOf<T>::kLanes;
  const Epilogue<N> epilogue(args);
  const int channels = args.shape.out_c;
  auto* most = static_cast<T*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const Taps<T> taps(args, pixel);
    int c = 0;
    for (; c + 4 * kLanes <= channels; c += 4 * kLanes) window_max<4>(taps, c, most);
    for (; c + kLanes <= channels; c += kLanes) window_max<1>(taps, c, most);
    for (; c < channels; ++c) {
      most[c] = taps.first[c];
      taps.each(c, [&](const T* x) OVSW_INLINE_LAMBDA { most[c] = *x > most[c] ? *x : most[c]; });
    }
    finish<N>(epilogue, most, pixel, channels);
  }
}

// The mean, summed in double: exact for any sensible map.
template <>
void Avgpool<Numerics::kFloat>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<Numerics::kFloat> epilogue(args);
  auto* acc = static_cast<double*>(scratch);
  const double count = double(s.window_h) * s.window_w;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::memset(acc, 0, std::size_t(s.out_c) * sizeof(double));
    Taps<float>(args, pixel).each(0, [&](const float* x) OVSW_INLINE_LAMBDA {
      for (int c = 0; c < s.in_c; ++c) acc[c] += double(x[c]);
    });
    for (int c = 0; c < s.out_c; ++c) acc[c] /= count;
    finish_pixel_call(epilogue, acc, pixel, 0, s.out_c);
  }
}

template <>
void Avgpool<Numerics::kInteger>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<Numerics::kInteger> epilogue(args);
  // (scale * sum + base) >> shift in double: products have at most 15 + 31 bits, so every operation is exact, and
  // unlike 64-bit products and shifts these are vector instructions everywhere.
  auto* sum = static_cast<std::int32_t*>(scratch);
  const std::size_t channels = padded(s.out_c);
  auto* scale = reinterpret_cast<double*>(sum + channels);
  double *base = scale + channels, *unit = base + channels;
  std::memset(scratch, 0, scratch_bytes(s));
  for (int c = 0; c < s.out_c; ++c) {
    scale[c] = args.constant<std::int16_t>(kScale)[c];
    base[c] = args.border.base[c];
    const std::int64_t power = std::int64_t(1023 - args.constant<std::int32_t>(kShift)[c]) << 52;
    std::memcpy(unit + c, &power, sizeof power);
  }
  constexpr int kLanes = kVector / int(sizeof(std::int32_t));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const Taps<std::int16_t> taps(args, pixel);
    int c = 0;
    for (; c + 4 * kLanes <= s.in_c; c += 4 * kLanes) window_sum<4>(taps, c, sum);
    for (; c + kLanes <= s.in_c; c += kLanes) window_sum<1>(taps, c, sum);
    for (; c < s.in_c; ++c) {
      sum[c] = 0;
      taps.each(c, [&](const std::int16_t* x) OVSW_INLINE_LAMBDA { sum[c] += *x; });
    }
    for (std::size_t i = 0; i < channels; i += kVector / sizeof(double)) {
      const auto y = __builtin_convertvector(get<Ints>(sum + i), Doubles);
      const Doubles x = (y * get<Doubles>(scale + i) + get<Doubles>(base + i)) * get<Doubles>(unit + i);
      Ints q = __builtin_convertvector(x, Ints);  // towards zero
      q += __builtin_convertvector(__builtin_convertvector(q, Doubles) > x, Ints);
      std::memcpy(sum + i, &q, sizeof q);
    }
    finish_pixel(epilogue, sum, pixel, 0, s.out_c);
  }
}

template <Numerics N>
void ChannelPad<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  using T = typename Epilogue<N>::Value;
  const Shape& s = args.shape;
  const Epilogue<N> epilogue(args);
  const auto* in = static_cast<const T*>(args.in.data);
  auto* wide = static_cast<T*>(scratch);
  std::memset(wide, 0, std::size_t(s.out_c) * sizeof(T));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::memcpy(wide + args.channel_shift, in + pixel * s.in_c, std::size_t(s.in_c) * sizeof(T));
    finish<N>(epilogue, wide, pixel, s.out_c);
  }
}

template <Numerics N>
void Eltwise<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void*) {
  const Epilogue<N> epilogue(args);
  const auto* in = static_cast<const typename Epilogue<N>::Value*>(args.in.data);
  const int channels = args.shape.out_c;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    finish<N>(epilogue, in + pixel * channels, pixel, channels);
  }
}

template struct Maxpool<Numerics::kFloat>;
template struct Maxpool<Numerics::kInteger>;
template struct ChannelPad<Numerics::kFloat>;
template struct ChannelPad<Numerics::kInteger>;
template struct Eltwise<Numerics::kFloat>;
template struct Eltwise<Numerics::kInteger>;

}  // namespace ovsw::OVSW_ISA::plain
