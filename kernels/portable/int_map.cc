// Integer kernels without weights: pools, channel padding, and the epilogue alone.

#include "kernels/portable/int_epilogue.h"
#include "kernels/portable/integer.h"
#include "kernels/portable/taps.h"

namespace ovsw::OVSW_PORTABLE {
namespace {

#if defined(__AVX512F__)
constexpr int kVector = 64;
#elif defined(__AVX2__)
constexpr int kVector = 32;
#else
constexpr int kVector = 16;
#endif
constexpr int kLanes = kVector / int(sizeof(std::int16_t));
typedef std::int16_t Vector __attribute__((vector_size(kVector)));
typedef std::int16_t Half __attribute__((vector_size(kVector / 2)));
typedef std::int32_t Wide __attribute__((vector_size(kVector)));
typedef std::int32_t Ints __attribute__((vector_size(kVector / 2)));  // as many as Doubles
typedef double Doubles __attribute__((vector_size(kVector)));

// A multiple of what any of them holds.
std::size_t padded(int channels) { return std::size_t(ceil_div(channels, 16)) * 16; }

template <typename T, typename U>
OVSW_INLINE T get(const U* from) {
  T vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// The maximum of N vectors of channels over the taps of a window, whose first pixel is at `in`. N registers, each
// started with the first tap.
template <int N>
OVSW_INLINE void window_max(const std::int16_t* in, const Window& w, std::int64_t row, std::int64_t column,
                            std::int16_t* to) {
  Vector most[N];
  std::memcpy(most, in, sizeof most);
  for (int y = 0; y < w.rows; ++y, in += row) {
    const std::int16_t* x = in;
    for (int i = 0; i < w.columns; ++i, x += column) {
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) {
        const auto next = get<Vector>(x + v * kLanes);
        most[v] = next > most[v] ? next : most[v];
      }
    }
  }
  std::memcpy(to, most, sizeof most);
}

// The sums of N half vectors likewise.
template <int N>
OVSW_INLINE void window_sum(const std::int16_t* in, const Window& w, std::int64_t row, std::int64_t column,
                            std::int32_t* to) {
  Wide sum[N] = {};
  for (int y = 0; y < w.rows; ++y, in += row) {
    const std::int16_t* x = in;
    for (int i = 0; i < w.columns; ++i, x += column) {
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) sum[v] += __builtin_convertvector(get<Half>(x + v * kLanes / 2), Wide);
    }
  }
  std::memcpy(to, sum, sizeof sum);
}

}  // namespace

// Sums, and three constants of average pooling, per channel.
std::size_t int_map_scratch_bytes(const Shape& s) {
  return padded(s.out_c) * (sizeof(std::int32_t) + 3 * sizeof(double));
}

void int_maxpool(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const auto* in = static_cast<const std::int16_t*>(args.in);
  auto* q = static_cast<std::int16_t*>(scratch);
  const std::int64_t column = s.in_c, row = column * s.in_w;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const Window w = window(s, pixel);
    const std::int16_t* first = in + w.y * row + w.x * column;
    int c = 0;
    for (; c + 4 * kLanes <= s.in_c; c += 4 * kLanes) window_max<4>(first + c, w, row, column, q + c);
    for (; c + kLanes <= s.in_c; c += kLanes) window_max<1>(first + c, w, row, column, q + c);
    for (; c < s.in_c; ++c) {
      q[c] = first[c];
      for (int y = 0; y < w.rows; ++y) {
        for (int x = 0; x < w.columns; ++x) {
          const std::int16_t next = first[y * row + x * column + c];
          q[c] = next > q[c] ? next : q[c];
        }
      }
    }
    int_finish_pixel(args, q, pixel, 0, s.out_c);
  }
}

void int_avgpool(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const auto* in = static_cast<const std::int16_t*>(args.in);
  const std::int64_t column = s.in_c, row = column * s.in_w;
  // (mult * sum + base) >> shift in double: products have at most 15 + 31 bits, so every operation is exact, and
  // unlike 64-bit products and shifts these are vector instructions everywhere.
  auto* sum = static_cast<std::int32_t*>(scratch);
  const std::size_t channels = padded(s.out_c);
  auto* mult = reinterpret_cast<double*>(sum + channels);
  double *base = mult + channels, *scale = base + channels;
  std::memset(scratch, 0, int_map_scratch_bytes(s));
  for (int c = 0; c < s.out_c; ++c) {
    mult[c] = args.mult[c];
    base[c] = args.border.base[c];
    const std::int64_t power = std::int64_t(1023 - args.shift[c]) << 52;
    std::memcpy(scale + c, &power, sizeof power);
  }
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const Window w = window(s, pixel);
    const std::int16_t* first = in + w.y * row + w.x * column;
    int c = 0;
    for (; c + 2 * kLanes <= s.in_c; c += 2 * kLanes) window_sum<4>(first + c, w, row, column, sum + c);
    for (; c + kLanes / 2 <= s.in_c; c += kLanes / 2) window_sum<1>(first + c, w, row, column, sum + c);
    for (; c < s.in_c; ++c) {
      sum[c] = 0;
      for (int y = 0; y < w.rows; ++y) {
        for (int x = 0; x < w.columns; ++x) sum[c] += first[y * row + x * column + c];
      }
    }
    for (std::size_t i = 0; i < channels; i += kVector / sizeof(double)) {
      const auto y = __builtin_convertvector(get<Ints>(sum + i), Doubles);
      const Doubles x = (y * get<Doubles>(mult + i) + get<Doubles>(base + i)) * get<Doubles>(scale + i);
      Ints q = __builtin_convertvector(x, Ints);  // towards zero
      q += __builtin_convertvector(__builtin_convertvector(q, Doubles) > x, Ints);
      std::memcpy(sum + i, &q, sizeof q);
    }
    int_finish_pixel(args, sum, pixel, 0, s.out_c);
  }
}

void int_channel_pad(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const auto* in = static_cast<const std::int16_t*>(args.in);
  auto* q = static_cast<std::int16_t*>(scratch);
  std::memset(q, 0, std::size_t(s.out_c) * sizeof(std::int16_t));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::memcpy(q + args.channel_shift, in + pixel * s.in_c, std::size_t(s.in_c) * sizeof(std::int16_t));
    int_finish_pixel(args, q, pixel, 0, s.out_c);
  }
}

void int_eltwise(const IntArgs& args, std::int64_t begin, std::int64_t end, void*) {
  const Shape& s = args.shape;
  const auto* in = static_cast<const std::int16_t*>(args.in);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) int_finish_pixel(args, in + pixel * s.in_c, pixel, 0, s.out_c);
}

}  // namespace ovsw::OVSW_PORTABLE
