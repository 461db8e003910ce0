// Integer kernels without weights: pools, channel padding, and the epilogue alone.

#include "kernels/portable/int_epilogue.h"
#include "kernels/portable/integer.h"
#include "kernels/portable/taps.h"

namespace ovsw::OVSW_PORTABLE {

std::size_t int_map_scratch_bytes(const Shape& s) { return std::size_t(s.out_c) * sizeof(std::int32_t); }

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

// The maximum of N vectors of channels over the taps of a window, whose first pixel is at `in`. N registers, each
// started with the first tap.
template <int N>
OVSW_INLINE void window_max(const std::int16_t* in, int rows, int columns, std::int64_t row, std::int64_t column,
                            std::int16_t* to) {
  Vector most[N];
  std::memcpy(most, in, sizeof most);
  for (int y = 0; y < rows; ++y, in += row) {
    const std::int16_t* x = in;
    for (int i = 0; i < columns; ++i, x += column) {
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) {
        Vector next;
        std::memcpy(&next, x + v * kLanes, sizeof next);
        most[v] = next > most[v] ? next : most[v];
      }
    }
  }
  std::memcpy(to, most, sizeof most);
}

}  // namespace

void int_maxpool(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const auto* in = static_cast<const std::int16_t*>(args.in);
  auto* q = static_cast<std::int16_t*>(scratch);
  const std::int64_t column = s.in_c, row = column * s.in_w;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const Window w = window(s, pixel);
    const std::int16_t* first = in + w.y * row + w.x * column;
    int c = 0;
    for (; c + 4 * kLanes <= s.in_c; c += 4 * kLanes) window_max<4>(first + c, w.rows, w.columns, row, column, q + c);
    for (; c + kLanes <= s.in_c; c += kLanes) window_max<1>(first + c, w.rows, w.columns, row, column, q + c);
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
  auto* q = static_cast<std::int32_t*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::memset(q, 0, std::size_t(s.out_c) * sizeof(std::int32_t));
    for_taps(s, static_cast<const std::int16_t*>(args.in), pixel, [&](const std::int16_t* x, bool) OVSW_INLINE_LAMBDA {
      for (int c = 0; c < s.in_c; ++c) q[c] += x[c];
    });
    for (int c = 0; c < s.out_c; ++c) {
      q[c] = std::int32_t((std::int64_t(args.mult[c]) * q[c] + args.border.base[c]) >> args.shift[c]);
    }
    int_finish_pixel(args, q, pixel, 0, s.out_c);
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
