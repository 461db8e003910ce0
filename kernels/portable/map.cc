// Kernels without weights: pools, channel padding, and the epilogue alone. Each fills one pixel's channels in scratch.

#include "kernels/portable/map.h"

#include "kernels/portable/epilogue.h"
#include "kernels/portable/taps.h"

namespace ovsw::OVSW_PORTABLE {
std::size_t map_scratch_bytes(const Shape& s) { return std::size_t(s.out_c) * sizeof(double); }

void maxpool(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  auto* acc = static_cast<float*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    for_taps(s, static_cast<const float*>(args.in), pixel, [&](const float* x, bool first) OVSW_INLINE_LAMBDA {
      if (first) {
        std::memcpy(acc, x, std::size_t(s.in_c) * sizeof(float));
      } else {
        for (int c = 0; c < s.in_c; ++c) acc[c] = x[c] > acc[c] ? x[c] : acc[c];
      }
    });
    finish_pixel(args.epilogue, acc, pixel, s.out_c);
  }
}

// The mean, summed in double: exact for any sensible map.
void avgpool(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  auto* acc = static_cast<double*>(scratch);
  const double count = double(s.kernel_h) * s.kernel_w;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::memset(acc, 0, std::size_t(s.out_c) * sizeof(double));
    for_taps(s, static_cast<const float*>(args.in), pixel, [&](const float* x, bool) OVSW_INLINE_LAMBDA {
      for (int c = 0; c < s.in_c; ++c) acc[c] += double(x[c]);
    });
    for (int c = 0; c < s.out_c; ++c) acc[c] /= count;
    finish_pixel(args.epilogue, acc, pixel, s.out_c);
  }
}

void channel_pad(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const auto* in = static_cast<const float*>(args.in);
  auto* acc = static_cast<float*>(scratch);
  std::memset(acc, 0, std::size_t(s.out_c) * sizeof(float));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::memcpy(acc + args.channel_shift, in + pixel * s.in_c, std::size_t(s.in_c) * sizeof(float));
    finish_pixel(args.epilogue, acc, pixel, s.out_c);
  }
}

void eltwise(const KernelArgs& args, std::int64_t begin, std::int64_t end, void*) {
  const Shape& s = args.shape;
  const auto* in = static_cast<const float*>(args.in);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    finish_pixel(args.epilogue, in + pixel * s.in_c, pixel, s.out_c);
  }
}

}  // namespace ovsw::OVSW_PORTABLE
