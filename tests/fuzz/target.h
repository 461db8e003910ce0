// What the targets share: when a file is worth the time, and the count of what became of all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "csrc/graph/graph.h"

namespace ovsw::fuzz {

// Whether loading takes little time and memory: a target must be fast, and what large files may take is not its
// business.
inline bool quick_to_load(const Graph& graph) {
  double work = 0;
  for (const Value& v : graph.values) work += double(v.bytes());
  for (const Op& op : graph.ops) {
    const Shape& s = op.shape;
    // Border tables: no axis has more classes than this.
    const auto classes = [](int out, int window) { return double(std::min(out, 2 * window + 1)); };
    work += classes(s.out_h, s.window_h) * classes(s.out_w, s.window_w) * (s.out_c + 64) * 16;
    work += double(s.out_h + s.out_w) * std::min(s.window_h + s.window_w, s.out_h + s.out_w);
    work += double(s.in_h + 2 * s.pad_h) * (s.in_w + 2 * s.pad_w) * s.in_c * 2;
  }
  return work < double(1 << 26);
}

inline bool quick_to_run(const Graph& graph) {
  double work = 0;
  for (const Value& v : graph.values) work += double(v.elements());
  for (const Op& op : graph.ops)
    work += op.macs() / 4 + double(op.taps()) * op.shape.out_h * op.shape.out_w * op.shape.in_c;
  return quick_to_load(graph) && work < double(1 << 21);
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
