// What the targets share: when a file is worth the time, and the count of what became of all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "csrc/graph/graph.h"

namespace ovsw::fuzz {

// What a target lets a file take, so that it is fast: less than the engine does, and as strictly kept.
constexpr std::size_t kMemory = std::size_t(32) << 20;

inline bool quick_to_run(const Graph& graph) {
  double work = 0;
  for (const Value& v : graph.values) work += double(v.elements());
  for (const Op& op : graph.ops)
    work += op.macs() / 4 + double(op.taps()) * op.shape.out_h * op.shape.out_w * op.shape.in_c;
  return work < double(1 << 21);
}

// Printed when a campaign ends.
class Tally {
 public:
  explicit Tally(const char* target) : target_(target) {
    static Tally* only = nullptr;
    only = this;
    std::atexit([] { only->print(); });
  }

  std::uint64_t inputs = 0, accepted = 0, done = 0;

 private:
  void print() const {
    const double share = inputs ? 100.0 * double(done) / double(inputs) : 0;
    std::fprintf(stderr, "%s: %llu inputs, %llu accepted by the loader, %llu gone through (%.1f %%)\n", target_,
                 (unsigned long long)inputs, (unsigned long long)accepted, (unsigned long long)done, share);
  }

  const char* target_;
};

}  // namespace ovsw::fuzz
