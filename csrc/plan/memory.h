// The memory that an engine needs for a file, counted before any of it is allocated: a small file cannot ask for
// gigabytes.
#pragma once

#include <cstddef>

namespace ovsw {

// In bytes, as allocated. No sum comes near 2^63: sides are at most 2^20 long and there are at most 2^14 ops. The
// tables of ops and values are not counted; they take a few hundred bytes for each record of the file.
struct Memory {
  std::size_t weights;  // packed weights and per-channel constants
  std::size_t borders;
  std::size_t maps;     // for one call of Engine::run, like all that follows
  std::size_t scratch;  // for one thread
  std::size_t arrays;   // of the caller: an image as float32, the results, and a copy of them in another order

  std::size_t total(int threads) const { return weights + borders + maps + scratch * std::size_t(threads) + arrays; }
};

// The limit for a file of `size` bytes, unless the caller sets one.
constexpr std::size_t default_memory_limit(std::size_t size) { return (std::size_t(160) << 20) + 4 * size; }

}  // namespace ovsw
