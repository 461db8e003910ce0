// How a step is divided among threads: the pixels into rows of parts, the channels into columns.
#pragma once

#include <cstdint>

#include "csrc/plan/plan.h"

namespace ovsw {

// The work of a step.
struct Work {
  std::int64_t pixels, channels;
  double products;  // for one channel of one pixel, in units of 64 binary or 10 real ones; 0 without weights
};

struct Split {
  std::int64_t rows, columns;

  std::int64_t parts() const { return rows * columns; }
  // The pixels and channels of part i: nearly equal shares, in multiples of what kernels process together.
  struct Part {
    std::int64_t first_pixel, last_pixel, first_channel, last_channel;
  };
  Part part(std::int64_t i, const Work& work) const;
};

Work work_of(const Step& step);

// The split with the least estimated time: as many rounds of parts as it takes, plus half a part because threads are
// never equally fast.
Split split(const Work& work, std::int64_t threads);

}  // namespace ovsw
