// A pixel of the result is a weighted mean of source pixels. The weights fall linearly from its centre to zero at a
// distance of one pixel: a source pixel when enlarging, a result pixel when shrinking. Rows are scaled first, then
// columns, each rounded to 8 bits; weights have 22 fractional bits.
#include "csrc/cli/scale.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace ovsw::cli {
namespace {

constexpr int kFraction = 22;

struct Mean {
  std::size_t from = 0;  // in the source
  std::vector<std::int32_t> weights;
};

// For `count` pixels from `first` on, where `length` pixels become `scaled`.
std::vector<Mean> means(std::size_t length, std::size_t scaled, std::size_t first, std::size_t count) {
  const double step = double(length) / double(scaled), reach = std::max(step, 1.0);
  std::vector<Mean> result;
  for (std::size_t i = first; i < first + count; ++i) {
    const double centre = (double(i) + 0.5) * step;
    const auto from = std::size_t(std::max(centre - reach + 0.5, 0.0));
    const std::size_t to = std::min(std::size_t(centre + reach + 0.5), length);
    std::vector<double> weights;
    double sum = 0;
    for (std::size_t x = from; x < to; ++x) {
      const double distance = std::abs((double(x) - centre + 0.5) * (1 / reach));
      weights.push_back(std::max(1 - distance, 0.0));
      sum += weights.back();
    }
    Mean mean{from, {}};
    for (double weight : weights) mean.weights.push_back(std::int32_t(weight / sum * (1 << kFraction) + 0.5));
    result.push_back(std::move(mean));
  }
  return result;
}

// The mean of bytes that are `stride` apart.
std::uint8_t apply(const Mean& mean, const std::uint8_t* from, std::size_t stride) {
  std::int32_t sum = 1 << (kFraction - 1);
  for (std::int32_t weight : mean.weights) {
    sum += weight * *from;
    from += stride;
  }
  return std::uint8_t(std::min(sum >> kFraction, 255));
}

std::size_t centred(std::size_t length, std::size_t part) {
  return std::size_t(std::nearbyint(double(length - part) / 2));  // halves to the even one
}

}  // namespace

Picture scaled_centre(const Picture& picture, std::size_t resize, std::size_t height, std::size_t width) {
  const std::size_t shorter = std::min(picture.height, picture.width);
  const std::size_t rows = resize * picture.height / shorter, columns = resize * picture.width / shorter;
  const std::vector<Mean> along_row = means(picture.width, columns, centred(columns, width), width);
  const std::vector<Mean> along_column = means(picture.height, rows, centred(rows, height), height);

  const std::size_t channels = picture.channels, stride = width * channels;
  const std::size_t top = along_column.front().from;
  const std::size_t bottom = along_column.back().from + along_column.back().weights.size();
  std::vector<std::uint8_t> narrow((bottom - top) * stride);
  for (std::size_t y = top; y < bottom; ++y) {
    const std::uint8_t* row = picture.pixels.data() + y * picture.width * channels;
    for (std::size_t i = 0; i < stride; ++i) {
      const Mean& mean = along_row[i / channels];
      narrow[(y - top) * stride + i] = apply(mean, row + mean.from * channels + i % channels, channels);
    }
  }
  Picture result{height, width, channels, std::vector<std::uint8_t>(height * stride)};
  for (std::size_t y = 0; y < height; ++y) {
    const Mean& mean = along_column[y];
    for (std::size_t i = 0; i < stride; ++i) {
      result.pixels[y * stride + i] = apply(mean, narrow.data() + (mean.from - top) * stride + i, stride);
    }
  }
  return result;
}

}  // namespace ovsw::cli
