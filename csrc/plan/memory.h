// What an engine allocates because of a file, known before any of it is: so a small file cannot ask for gigabytes.
#pragma once

#include <cstddef>

namespace ovsw {

// In bytes, as allocated. Shapes are at most 2^20 to a side and there are at most 2^14 ops, so that no sum of all this
// comes near 2^63. The tables of ops and values are left out: they are a few hundred bytes for each record of the file.
struct Memory {
  std::size_t weights;  // packed, and what is per channel
  std::size_t borders;
  std::size_t maps;     // of one call of Engine::run, like all that follows
  std::size_t scratch;  // of one thread
  std::size_t arrays;   // what callers hold: an image as float32, the results and a copy of them in another order

  std::size_t total(int threads) const { return weights + borders + maps + scratch * std::size_t(threads) + arrays; }
};

// What a file of `size` bytes may take unless the caller says otherwise.
constexpr std::size_t default_memory_limit(std::size_t size) { return (std::size_t(160) << 20) + 4 * size; }

}  // namespace ovsw
