#include "csrc/runtime/split.h"

#include <algorithm>

namespace ovsw {
namespace {

constexpr std::int64_t kPixelUnit = 4;      // most kernels process this many together
constexpr std::int64_t kChannelUnit = 64;   // as kernels.h says
constexpr std::int64_t kMostPerThread = 4;  // parts

// Estimated costs, from layer times on x86 and the bytes that they read: of reading a channel's weights, of gathering a
// pixel's patch (both in units of the products for one channel of one pixel), and of starting a part (in products).
// tools/threads.py evaluates the resulting splits.
constexpr double kReading = 6, kGathering = 4, kStart = 10'000;
constexpr double kWeightless = 0.5;  // cost of a channel of a pixel in a step without weights

std::int64_t cut(std::int64_t items, std::int64_t i, std::int64_t n, std::int64_t unit) {
  return i == n ? items : items * i / n / unit * unit;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The cost of a part, in units of one product of Work: its products, reading each channel's weights once, gathering
// each pixel's patch once, and starting.
double cost(const Work& work, double pixels, double channels) {
  if (work.products == 0) return kWeightless * pixels * channels + kStart;
  return work.products * (pixels * channels + kReading * channels + kGathering * pixels) + kStart;
}

}  // namespace

Split::Part Split::part(std::int64_t i, const Work& work) const {
  const std::int64_t row = i / columns, column = i % columns;
  return {cut(work.pixels, row, rows, kPixelUnit), cut(work.pixels, row + 1, rows, kPixelUnit),
          cut(work.channels, column, columns, kChannelUnit), cut(work.channels, column + 1, columns, kChannelUnit)};
}

Work work_of(const Step& step) {
  const Shape& s = step.args.shape;
  const std::int64_t pixels = std::int64_t(s.out_h) * s.out_w;
  if (!step.traits->is(kWeights)) return {pixels, s.out_c, 0};
  const double products = double(s.window_h) * s.window_w * s.group_in();
  return {pixels, s.out_c, products / (step.traits->is(kBinary) ? 64 : 10)};
}

Split split(const Work& work, std::int64_t threads) {
  if (threads == 1) return {1, 1};
  const std::int64_t most_columns = work.products == 0 ? 1 : std::min(threads, ceil_div(work.channels, kChannelUnit));
  const std::int64_t most_rows = ceil_div(work.pixels, kPixelUnit);
  Split best{1, 1};
  double least = 0;
  for (std::int64_t columns = 1; columns <= most_columns; ++columns) {
    for (std::int64_t each = 0; each <= kMostPerThread; ++each) {  // none: all in one part
      const std::int64_t rows = each == 0 ? 1 : std::min(most_rows, ceil_div(threads * each, columns));
      const Split s{rows, columns};
      const double pixels = double(ceil_div(ceil_div(work.pixels, kPixelUnit), rows) * kPixelUnit);
      const double channels = double(ceil_div(ceil_div(work.channels, kChannelUnit), columns) * kChannelUnit);
      const double one = cost(work, pixels, channels);
      const double time = (double(ceil_div(s.parts(), threads)) + (s.parts() > 1 ? 0.5 : 0)) * one;
      if (least == 0 || time < least) {
        least = time;
        best = s;
      }
    }
  }
  return best;
}

}  // namespace ovsw
