// Integer kernels without weights: pools, channel padding, and the epilogue alone.

#include "kernels/portable/int_epilogue.h"
#include "kernels/portable/integer.h"
#include "kernels/portable/taps.h"

namespace ovsw::OVSW_PORTABLE {

std::size_t int_map_scratch_bytes(const Shape& s) { return std::size_t(s.out_c) * sizeof(std::int32_t); }

// Channels are taken kBlock at a time, so that the running maximum stays in registers over the taps.
void int_maxpool(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  constexpr int kBlock = 16;  // with more, gcc 12 keeps the maximum in memory
#else
  constexpr int kBlock = 64;
#endif
  typedef std::int16_t Block __attribute__((vector_size(kBlock * sizeof(std::int16_t))));
  const Shape& s = args.shape;
  const auto* in = static_cast<const std::int16_t*>(args.in);
  auto* q = static_cast<std::int16_t*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    int c = 0;
    for (; c + kBlock <= s.in_c; c += kBlock) {
      Block most = Block{} - 32767 - 1;
      for_taps(s, in + c, pixel, [&](const std::int16_t* x, bool) OVSW_INLINE_LAMBDA {
        Block block;
        std::memcpy(&block, x, sizeof block);
        most = block > most ? block : most;
      });
      std::memcpy(q + c, &most, sizeof most);
    }
    if (c < s.in_c) {
      for_taps(s, in, pixel, [&](const std::int16_t* x, bool first) OVSW_INLINE_LAMBDA {
        for (int i = c; i < s.in_c; ++i) q[i] = first || x[i] > q[i] ? x[i] : q[i];
      });
    }
    int_finish_pixel(args, q, pixel, s.out_c);
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
    int_finish_pixel(args, q, pixel, s.out_c);
  }
}

void int_channel_pad(const IntArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const auto* in = static_cast<const std::int16_t*>(args.in);
  auto* q = static_cast<std::int16_t*>(scratch);
  std::memset(q, 0, std::size_t(s.out_c) * sizeof(std::int16_t));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::memcpy(q + args.channel_shift, in + pixel * s.in_c, std::size_t(s.in_c) * sizeof(std::int16_t));
    int_finish_pixel(args, q, pixel, s.out_c);
  }
}

void int_eltwise(const IntArgs& args, std::int64_t begin, std::int64_t end, void*) {
  const Shape& s = args.shape;
  const auto* in = static_cast<const std::int16_t*>(args.in);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) int_finish_pixel(args, in + pixel * s.in_c, pixel, s.out_c);
}

}  // namespace ovsw::OVSW_PORTABLE
