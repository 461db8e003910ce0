#include "csrc/binding/popcount.h"

namespace ovsw {
namespace {

// Channels whose counts run beside each other, so that no sum waits for the one before it.
constexpr int kChannels = 4;

std::uint64_t count_bits(std::uint64_t a, std::uint64_t b) { return std::uint64_t(__builtin_popcountll(a ^ b)); }

}  // namespace

std::uint64_t popcount_dots(const std::uint64_t* patches, int pixels, const std::uint64_t* weights, int channels,
                            int words) {
  std::uint64_t total = 0;
  for (int p = 0; p < pixels; ++p) {
    const std::uint64_t* patch = patches + std::int64_t(p) * words;
    int c = 0;
    for (; c + kChannels <= channels; c += kChannels) {
      const std::uint64_t* w = weights + std::int64_t(c) * words;
      std::uint64_t a = 0, b = 0, d = 0, e = 0;
      for (int k = 0; k < words; ++k) {
        a += count_bits(patch[k], w[k]);
        b += count_bits(patch[k], w[k + words]);
        d += count_bits(patch[k], w[k + 2 * words]);
        e += count_bits(patch[k], w[k + 3 * words]);
      }
      total += a + b + d + e;
    }
    for (; c < channels; ++c) {
      for (int k = 0; k < words; ++k) total += count_bits(patch[k], weights[std::int64_t(c) * words + k]);
    }
  }
  return total;
}

}  // namespace ovsw
