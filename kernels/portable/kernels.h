// The portable kernels, each for both numerics.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PLAIN::plain {

template <Numerics N>
struct Bconv {
  OVSW_KERNEL;
};

// On pixels too, and the classifier in float.
template <Numerics N>
struct Conv {
  OVSW_KERNEL;
};

// In integers only.
struct Linear {
  OVSW_KERNEL;
};

struct Weightless {
  static std::size_t packed_bytes(const Shape&) { return 0; }
  static void pack(const Shape&, const void*, void*) {}
  static std::size_t scratch_bytes(const Shape& s);
};

template <Numerics N>
struct Maxpool : Weightless {
  static void run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
};

template <Numerics N>
struct Avgpool : Weightless {
  static void run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
};

template <Numerics N>
struct ChannelPad : Weightless {
  static void run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
};

template <Numerics N>
struct Eltwise : Weightless {
  static void run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch);
};

}  // namespace ovsw::OVSW_PLAIN::plain
