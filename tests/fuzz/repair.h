// Makes a network of a document whose parts no longer fit together: shapes are computed anew, tensors take the types
// and sizes that their ops ask for, references find something of the right kind, and sums keep within 32 bits. What
// fits already stays as it is. So most mutants get past the loader.
#pragma once

#include <random>

#include "tests/fuzz/container.h"

namespace ovsw::fuzz {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}

  std::uint32_t below(std::size_t n) { return n ? std::uint32_t(engine_() % n) : 0; }
  bool chance(unsigned percent) { return below(100) < percent; }
  template <typename T, std::size_t N>
  T one_of(const T (&list)[N]) {
    return list[below(N)];
  }

 private:
  std::minstd_rand engine_;
};

void repair(Document& document, Random& random);

}  // namespace ovsw::fuzz
