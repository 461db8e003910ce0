// The Python module ovsw._bench: the two speeds that the bench compares kernels with, of 64-bit popcounts and of
// copies.

#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/binding/without_gil.h"

namespace py = pybind11;

namespace ovsw {
namespace {

// Channels that are counted side by side, so that no sum waits for the one before it.
constexpr int kChannels = 4;

template <typename Fn>
double seconds_of(Fn fn) {
  const WithoutGil unlocked;
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One patch with `channels` filters of `words` words each: the sum of popcount(patch xor weight).
std::uint64_t popcount_dots(const std::uint64_t* patch, const std::uint64_t* weights, int channels, int words) {
  const auto count = [](std::uint64_t a, std::uint64_t b) { return std::uint64_t(__builtin_popcountll(a ^ b)); };
  std::uint64_t total = 0;
  int c = 0;
  for (; c + kChannels <= channels; c += kChannels, weights += kChannels * words) {
    std::uint64_t a = 0, b = 0, d = 0, e = 0;
    for (int k = 0; k < words; ++k) {
      a += count(patch[k], weights[k]);
      b += count(patch[k], weights[k + words]);
      d += count(patch[k], weights[k + 2 * words]);
      e += count(patch[k], weights[k + 3 * words]);
    }
    total += a + b + d + e;
  }
  for (; c < channels; ++c, weights += words) {
    for (int k = 0; k < words; ++k) total += count(patch[k], weights[k]);
  }
  return total;
}

// Seconds for all pixels of a layer, with the CPU's 64-bit popcount instruction and nothing else.
double time_popcount(int pixels, int channels, int words) {
  check(pixels > 0 && channels > 0 && words > 0, "pixels, channels and words must be positive");
  const std::vector<std::uint64_t> patches(std::size_t(pixels) * std::size_t(words), 0x9E3779B97F4A7C15ull);
  const std::vector<std::uint64_t> weights(std::size_t(channels) * std::size_t(words), 0xC2B2AE3D27D4EB4Full);
  return seconds_of([&] {
    std::uint64_t total = 0;
    const std::uint64_t* patch = patches.data();
    for (int p = 0; p < pixels; ++p, patch += words) total += popcount_dots(patch, weights.data(), channels, words);
    asm volatile("" : : "r"(total));  // the sum is used: no dot is left out
  });
}

// Seconds for `repeat` copies, each of which reads and writes `size` bytes in total.
double time_copy(std::size_t size, int repeat) {
  check(size >= 2 && repeat > 0, "size must be at least 2 and repeat positive");
  std::vector<char> from(size / 2, 1), to(size / 2);
  return seconds_of([&] {
    for (int i = 0; i < repeat; ++i) {
      std::memcpy(to.data(), from.data(), to.size());
      asm volatile("" : : "r"(to.data()) : "memory");  // the copy is read: none is left out
    }
  });
}

}  // namespace
}  // namespace ovsw

PYBIND11_MODULE(_bench, m) {
  m.doc() = "Reference speeds for ovsw.bench.";
  m.def("time_popcount", &ovsw::time_popcount, py::arg("pixels"), py::arg("channels"), py::arg("words"));
  m.def("time_copy", &ovsw::time_copy, py::arg("size"), py::arg("repeat"));
}
