// How a step is shared out over threads: pixels in rows of parts, channels in columns.
#pragma once

#include <cstdint>

#include "csrc/plan/plan.h"

namespace ovsw {

// What a step does, as far as its parts differ.
struct Work {
  std::int64_t pixels, channels;
  double products;  // 64 binary ones, or ten real ones, for one channel of one pixel; 0 without weights
};

struct Split {
  std::int64_t rows, columns;

  std::int64_t parts() const { return rows * columns; }
  // The pixels and channels of part i: nearly equal shares, in multiples of what kernels take at once.
  struct Part {
    std::int64_t first_pixel, last_pixel, first_channel, last_channel;
  };
  Part part(std::int64_t i, const Work& work) const;
};

Work work_of(const Step& step);

// The split with the least modelled time: rounds of parts, and a part's half, as threads are never equally fast.
Split split(const Work& work, std::int64_t threads);

}  // namespace ovsw
