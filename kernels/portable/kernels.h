// The portable kernels, each for both numerics.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_PORTABLE::portable {

// The epilogue of a wide op: channels [c, c + n), at most 64, which begin at element `at` of the maps, from q. Returns
// their signs if wanted.
std::uint64_t wide_block(const KernelArgs& args, const std::int32_t* q, std::int64_t at, int c, int n);
std::uint64_t wide_block(const KernelArgs& args, const std::int16_t* q, std::int64_t at, int c, int n);

template <Numerics N>
struct Bconv {
  OVSW_KERNEL;
};

// With groups or dilation.
template <Numerics N>
struct BconvAny {
  OVSW_KERNEL;
};

// Also on pixels, and the classifier in float.
template <Numerics N>
struct Conv {
  OVSW_KERNEL;
};

// With groups or dilation, also on pixels.
template <Numerics N>
struct ConvAny {
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

// All that such a kernel declares.
#define OVSW_RUN static void run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch)

template <Numerics N>
struct Maxpool : Weightless {
  OVSW_RUN;
};

template <Numerics N>
struct Avgpool : Weightless {
  OVSW_RUN;
};

template <Numerics N>
struct ChannelPad : Weightless {
  OVSW_RUN;
};

template <Numerics N>
struct Eltwise : Weightless {
  OVSW_RUN;
};

template <Numerics N>
struct Mul : Weightless {
  OVSW_RUN;
};

template <Numerics N>
struct Concat : Weightless {
  OVSW_RUN;
};

// Their weights say where pixels come from.
template <Numerics N>
struct Gather {
  OVSW_KERNEL;
};

template <Numerics N>
struct Bilinear {
  OVSW_KERNEL;
};

// The same in both numerics.
struct Softmax : Weightless {
  OVSW_RUN;
};

struct LogSoftmax : Weightless {
  OVSW_RUN;
};

// In float only.
struct Round : Weightless {
  OVSW_RUN;
};

// In integers only.
struct ToFloat : Weightless {
  OVSW_RUN;
};

#undef OVSW_RUN

}  // namespace ovsw::OVSW_PORTABLE::portable
