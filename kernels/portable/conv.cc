// The real-valued convolutions: patches times panels of output channels.
//
// Float (stem, shortcuts, classifier), kPixels patches and kLanes output channels at a time:
//     packed[panel][k][lane],  k over (window_h, window_w, in_c) as in the file
// Sums are taken in runs of kRun products that are then added up. That costs little and halves the rounding error of
// one long float sum, on which the signs of the first binary layer depend. The order of additions is the same for every
// pixel whatever its place in a block, so results do not depend on how pixels are divided among threads.
//
// Integers (pixels and the stream): a patch of int16 against the weights of kRows channels at a time, as they are in
// the file. The loops over products are of the form that compilers turn into multiply-add instructions for int16 pairs.
//
// Groups: a patch of all channels, and per group panels of as many channels as it has, up to 16; sums are taken in the
// same order. Where a group is one channel (depthwise), vectors go over the channels instead:
//     packed[tap][channel]

#include "kernels/portable/epilogue.h"
#include "kernels/portable/kernels.h"
#include "kernels/portable/vectors.h"
#include "kernels/portable/window.h"

namespace ovsw::OVSW_ISA::portable {
namespace {

constexpr int kRun = 32;

// The widest vector of the instruction set compiled for, and the block of vectors x pixels that was fastest with it
// (measured on x86; on ARM as many sums as fit its 32 registers).
#if defined(__AVX512F__)
constexpr int kFloats = 16, kVectors = 4, kPixels = 4;
#elif defined(__AVX__)
constexpr int kFloats = 8, kVectors = 1, kPixels = 8;
#elif defined(__aarch64__)
constexpr int kFloats = 4, kVectors = 4, kPixels = 6;
#else
constexpr int kFloats = 4, kVectors = 4, kPixels = 2;
#endif
constexpr int kLanes = kFloats * kVectors;
typedef float Vector __attribute__((vector_size(kFloats * sizeof(float))));

constexpr int kRows = 4;

int patch_size(const Shape& s) { return s.window_h * s.window_w * s.in_c; }

// acc[p][lane] of P patches, `size` values each, lying `size` apart.
template <int P>
OVSW_INLINE void dot(const float* patches, const float* panel, int size, float* acc, int acc_stride, int lanes) {
  Vector total[P][kVectors] = {};
  for (int k0 = 0; k0 < size; k0 += kRun) {
    const int k1 = size - k0 < kRun ? size : k0 + kRun;
    Vector run[P][kVectors] = {};
    for (int k = k0; k < k1; ++k) {
      for (int v = 0; v < kVectors; ++v) {
        Vector w;
        std::memcpy(&w, panel + std::int64_t(k) * kLanes + v * kFloats, sizeof w);
        for (int p = 0; p < P; ++p) run[p][v] += w * patches[std::int64_t(p) * size + k];
      }
    }
    for (int p = 0; p < P; ++p) {
      for (int v = 0; v < kVectors; ++v) total[p][v] += run[p][v];
    }
  }
  for (int p = 0; p < P; ++p) {
    std::memcpy(acc + std::int64_t(p) * acc_stride, total[p], std::size_t(lanes) * sizeof(float));
  }
}

// Rows of weights, up to a multiple of kRows.
std::size_t padded_rows(const Shape& s) { return std::size_t(round_up(s.out_c, kRows)); }

// The one or the other gather, chosen once per call.
template <bool Dilated, typename In, typename Out>
OVSW_INLINE void gather_patch(const Shape& s, const In* in, int oy, int ox, Out* patch) {
  if constexpr (Dilated) {
    gather_dilated(s, in, s.in_c, oy, ox, patch);
  } else {
    gather(s, in, s.in_c, oy, ox, patch);
  }
}

// From the sums of a pixel to q.
OVSW_INLINE void add_base(const KernelArgs& args, int oy, int ox, int first, int last, std::int32_t* q) {
  const int border = args.border.row_class[oy] + args.border.col_class[ox];
  const std::int32_t* base = args.border.base + std::int64_t(border) * padded_channels(args.shape.out_c);
  const auto* shift = args.constant<std::int32_t>(kShift);
  for (int c = first; c < last; ++c) q[c] = (q[c] + base[c]) >> shift[c];
}

template <typename In, bool Dilated>
void run_integer(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<Numerics::kInteger> epilogue(args);
  const int size = patch_size(s), first = args.first_channel, last = args.last_channel;
  auto* q = static_cast<std::int32_t*>(scratch);
  auto* patch = reinterpret_cast<std::int16_t*>(q + padded_rows(s));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const int oy = int(pixel / s.out_w), ox = int(pixel % s.out_w);
    gather_patch<Dilated>(s, static_cast<const In*>(args.in.data), oy, ox, patch);
    const auto* weights = static_cast<const std::int16_t*>(args.weights) + std::int64_t(first) * size;
    for (int c = first; c < last; c += kRows, weights += std::int64_t(kRows) * size) {
      std::int32_t sum[kRows] = {};
      for (int k = 0; k < size; ++k) {
        for (int r = 0; r < kRows; ++r) sum[r] += patch[k] * weights[std::int64_t(r) * size + k];
      }
      for (int r = 0; r < kRows; ++r) q[c + r] = sum[r];
    }
    add_base(args, oy, ox, first, last, q);
    finish_pixel_call(epilogue, q, pixel, first, last);
  }
}

template <bool Dilated>
void run_float(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<Numerics::kFloat> epilogue(args);
  const int size = patch_size(s);
  const auto* in = static_cast<const float*>(args.in.data);
  const auto* weights = static_cast<const float*>(args.weights);
  auto* patches = static_cast<float*>(scratch);
  float* acc = patches + std::int64_t(kPixels) * size;

  for (std::int64_t first = begin; first < end; first += kPixels) {
    const int pixels = end - first < kPixels ? int(end - first) : kPixels;
    for (int p = 0; p < pixels; ++p) {
      const std::int64_t pixel = first + p;
      gather_patch<Dilated>(s, in, int(pixel / s.out_w), int(pixel % s.out_w), patches + p * std::int64_t(size));
    }
    for (int c = args.first_channel; c < args.last_channel; c += kLanes) {
      const int lanes = s.out_c - c < kLanes ? s.out_c - c : kLanes;
      const float* panel = weights + std::int64_t(c) * size;
      if (pixels == kPixels) {
        dot<kPixels>(patches, panel, size, acc + c, s.out_c, lanes);
      } else {
        for (int p = 0; p < pixels; ++p) {
          dot<1>(patches + std::int64_t(p) * size, panel, size, acc + std::int64_t(p) * s.out_c + c, s.out_c, lanes);
        }
      }
    }
    for (int p = 0; p < pixels; ++p) {
      const float* sums = acc + std::int64_t(p) * s.out_c;
      finish_pixel_call(epilogue, sums, first + p, args.first_channel, args.last_channel);
    }
  }
}

// The types of the numerics: elements of patches and weights, and their sums.
template <Numerics N>
struct Kind {
  using Element = float;
  using Sum = float;
};

template <>
struct Kind<Numerics::kInteger> {
  using Element = std::int16_t;
  using Sum = std::int32_t;
};

// Channels of a group side by side in its panels.
int group_lanes(const Shape& s) { return s.group_out() <= 4 ? 4 : s.group_out() <= 8 ? 8 : 16; }

std::int64_t group_size(const Shape& s) {  // elements of a group's weights, packed
  return ceil_div(s.group_out(), group_lanes(s)) * group_lanes(s) * s.window_h * s.window_w * s.group_in();
}

// acc[p][lane] of L output channels of a group for P patches of all channels, `size` apart; x and panel are the
// group's.
template <Numerics N, int L, int P>
OVSW_INLINE void dot_group(const Shape& s, const typename Kind<N>::Element* x, std::int64_t size,
                           const typename Kind<N>::Element* panel, int lanes, typename Kind<N>::Sum* acc) {
  using Sum = typename Kind<N>::Sum;
  using Element = typename Kind<N>::Element;
  typedef Sum Sums __attribute__((vector_size(L * sizeof(Sum))));
  typedef Element Weights __attribute__((vector_size(L * sizeof(Element))));
  Sums total[P] = {}, run[P] = {};
  const int taps = s.window_h * s.window_w, channels = s.group_in();
  int k = 0;
  for (int tap = 0; tap < taps; ++tap, x += s.in_c) {
    for (int i = 0; i < channels; ++i, panel += L) {
      Weights narrow;  // a vector of any width: not every one can be returned by a function
      std::memcpy(&narrow, panel, sizeof narrow);
      const Sums w = __builtin_convertvector(narrow, Sums);
      for (int p = 0; p < P; ++p) run[p] += w * Sum(x[p * size + i]);
      if (++k == kRun) {
        for (int p = 0; p < P; ++p) {
          total[p] += run[p];
          run[p] = Sums{};
        }
        k = 0;
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    if (k > 0) total[p] += run[p];
    std::memcpy(acc + std::int64_t(p) * s.out_c, &total[p], std::size_t(lanes) * sizeof(Sum));
  }
}

constexpr int kGroupPixels = 4;

// The channels [first, last) of `pixels` pixels.
template <Numerics N, int L>
void dot_groups(const KernelArgs& args, const typename Kind<N>::Element* patches, int pixels,
                typename Kind<N>::Sum* acc) {
  const Shape& s = args.shape;
  const int taps = s.window_h * s.window_w, out = s.group_out(), first = args.first_channel, last = args.last_channel;
  const std::int64_t size = patch_size(s), panel_size = std::int64_t(taps) * s.group_in() * L;
  for (int g = first / out; g < ceil_div(last, out); ++g) {
    const auto* weights = static_cast<const typename Kind<N>::Element*>(args.weights) + g * group_size(s);
    const auto* x = patches + g * s.group_in();
    for (int c = 0; c < out; c += L, weights += panel_size) {
      if (g * out + c + L <= first || g * out + c >= last) continue;
      const int lanes = out - c < L ? out - c : L;
      if (pixels == kGroupPixels) {
        dot_group<N, L, kGroupPixels>(s, x, size, weights, lanes, acc + g * out + c);
      } else {
        for (int p = 0; p < pixels; ++p) {
          dot_group<N, L, 1>(s, x + p * size, size, weights, lanes, acc + std::int64_t(p) * s.out_c + g * out + c);
        }
      }
    }
  }
}

// The sums of V vectors of channels from c on, as window_sum in pool.cc.
template <Numerics N, int V>
OVSW_INLINE void dot_channels(const typename Kind<N>::Element* x, int x_step, const typename Kind<N>::Element* w,
                              int w_step, int taps, typename Kind<N>::Sum* to) {
  using Sum = typename Kind<N>::Sum;
  using Element = typename Kind<N>::Element;
  constexpr int kCount = VectorOf<Sum>::kLanes;
  using Sums = typename VectorOf<Sum>::Type;
  typedef Element Elements __attribute__((vector_size(kCount * sizeof(Element))));
  Sums total[V] = {}, run[V] = {};
  int k = 0;
  for (int tap = 0; tap < taps; ++tap, x += x_step, w += w_step) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      run[v] += __builtin_convertvector(get<Elements>(x + v * kCount), Sums) *
                __builtin_convertvector(get<Elements>(w + v * kCount), Sums);
    }
    if (++k == kRun) {
      for (int v = 0; v < V; ++v) {
        total[v] += run[v];
        run[v] = Sums{};
      }
      k = 0;
    }
  }
  if (k > 0) {
    for (int v = 0; v < V; ++v) total[v] += run[v];
  }
  std::memcpy(to, total, sizeof total);
}

// Channels [first, last), and up to the next multiple of 64: patches are followed by that much that may be read.
template <Numerics N>
void dot_depthwise(const KernelArgs& args, const typename Kind<N>::Element* patch, typename Kind<N>::Sum* acc) {
  constexpr int kCount = VectorOf<typename Kind<N>::Sum>::kLanes;
  const Shape& s = args.shape;
  const int taps = s.window_h * s.window_w, stride = padded_channels(s.out_c), last = args.last_channel;
  const auto* weights = static_cast<const typename Kind<N>::Element*>(args.weights);
  int c = args.first_channel;
  for (; c + 4 * kCount <= last; c += 4 * kCount) {
    dot_channels<N, 4>(patch + c, s.in_c, weights + c, stride, taps, acc + c);
  }
  for (; c < last; c += kCount) dot_channels<N, 1>(patch + c, s.in_c, weights + c, stride, taps, acc + c);
}

std::int64_t padded_patch(const Shape& s) { return std::int64_t(patch_size(s)) + 64; }

template <Numerics N, typename In>
void run_groups(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<N> epilogue(args);
  auto* acc = static_cast<typename Kind<N>::Sum*>(scratch);
  auto* patches = reinterpret_cast<typename Kind<N>::Element*>(acc + kGroupPixels * padded_channels(s.out_c));
  const auto* in = static_cast<const In*>(args.in.data);
  const int lanes = group_lanes(s), block = is_depthwise(s) ? 1 : kGroupPixels;
  for (std::int64_t first = begin; first < end; first += block) {
    const int pixels = end - first < block ? int(end - first) : block;
    for (int p = 0; p < pixels; ++p) {
      const int oy = int((first + p) / s.out_w), ox = int((first + p) % s.out_w);
      auto* patch = patches + std::int64_t(p) * patch_size(s);
      gather_any(s, in, s.in_c, oy, ox, patch);
    }
    if (is_depthwise(s)) {
      dot_depthwise<N>(args, patches, acc);
    } else if (lanes == 4) {
      dot_groups<N, 4>(args, patches, pixels, acc);
    } else if (lanes == 8) {
      dot_groups<N, 8>(args, patches, pixels, acc);
    } else {
      dot_groups<N, 16>(args, patches, pixels, acc);
    }
    for (int p = 0; p < pixels; ++p) {
      const int oy = int((first + p) / s.out_w), ox = int((first + p) % s.out_w);
      auto* sums = acc + std::int64_t(p) * s.out_c;
      if constexpr (N == Numerics::kInteger) add_base(args, oy, ox, args.first_channel, args.last_channel, sums);
      finish_pixel_call(epilogue, sums, first + p, args.first_channel, args.last_channel);
    }
  }
}

}  // namespace

template <>
std::size_t Conv<Numerics::kFloat>::packed_bytes(const Shape& s) {
  return std::size_t(ceil_div(s.out_c, kLanes)) * patch_size(s) * kLanes * sizeof(float);
}

template <>
void Conv<Numerics::kFloat>::pack(const Shape& s, const void* weights, void* packed) {
  const int size = patch_size(s);
  auto* out = static_cast<float*>(packed);
  std::memset(out, 0, packed_bytes(s));
  const auto* from = static_cast<const float*>(weights);
  for (int c = 0; c < s.out_c; ++c) {
    float* panel = out + std::int64_t(c / kLanes) * size * kLanes + c % kLanes;
    for (int k = 0; k < size; ++k) panel[std::int64_t(k) * kLanes] = *from++;
  }
}

template <>
std::size_t Conv<Numerics::kFloat>::scratch_bytes(const Shape& s) {
  return kPixels * (std::size_t(patch_size(s)) + std::size_t(s.out_c)) * sizeof(float);
}

template <>
void Conv<Numerics::kFloat>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  run_float<false>(args, begin, end, scratch);
}

template <>
std::size_t Conv<Numerics::kInteger>::packed_bytes(const Shape& s) {
  return padded_rows(s) * patch_size(s) * sizeof(std::int16_t);
}

template <>
void Conv<Numerics::kInteger>::pack(const Shape& s, const void* weights, void* packed) {
  std::memset(packed, 0, packed_bytes(s));
  std::memcpy(packed, weights, std::size_t(s.out_c) * patch_size(s) * sizeof(std::int16_t));
}

template <>
std::size_t Conv<Numerics::kInteger>::scratch_bytes(const Shape& s) {
  return padded_rows(s) * sizeof(std::int32_t) + std::size_t(patch_size(s)) * sizeof(std::int16_t);
}

template <>
void Conv<Numerics::kInteger>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (args.in.kind == Element::kU8) {
    run_integer<std::uint8_t, false>(args, begin, end, scratch);
  } else {
    run_integer<std::int16_t, false>(args, begin, end, scratch);
  }
}

template <Numerics N>
std::size_t ConvAny<N>::packed_bytes(const Shape& s) {
  if (s.groups == 1) return Conv<N>::packed_bytes(s);
  const std::size_t depthwise = std::size_t(s.window_h) * s.window_w * padded_channels(s.out_c);
  return sizeof(typename Kind<N>::Element) * (is_depthwise(s) ? depthwise : std::size_t(s.groups * group_size(s)));
}

template <Numerics N>
void ConvAny<N>::pack(const Shape& s, const void* weights, void* packed) {
  if (s.groups == 1) return Conv<N>::pack(s, weights, packed);
  std::memset(packed, 0, packed_bytes(s));
  auto* to = static_cast<typename Kind<N>::Element*>(packed);
  const auto* from = static_cast<const typename Kind<N>::Element*>(weights);
  const bool depthwise = is_depthwise(s);
  const int lanes = group_lanes(s), out = s.group_out();
  const std::int64_t size = std::int64_t(s.window_h) * s.window_w * s.group_in();
  for (int c = 0; c < s.out_c; ++c) {
    const std::int64_t panel = c / out * group_size(s) + c % out / lanes * size * lanes + c % out % lanes;
    for (std::int64_t k = 0; k < size; ++k) {
      to[depthwise ? k * padded_channels(s.out_c) + c : panel + k * lanes] = *from++;
    }
  }
}

template <Numerics N>
std::size_t ConvAny<N>::scratch_bytes(const Shape& s) {
  if (s.groups == 1) return Conv<N>::scratch_bytes(s);
  return kGroupPixels * (std::size_t(padded_channels(s.out_c)) * sizeof(typename Kind<N>::Sum) +
                         std::size_t(padded_patch(s)) * sizeof(typename Kind<N>::Element));
}

template <>
void ConvAny<Numerics::kFloat>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (args.shape.groups == 1) {
    run_float<true>(args, begin, end, scratch);
  } else {
    run_groups<Numerics::kFloat, float>(args, begin, end, scratch);
  }
}

template <>
void ConvAny<Numerics::kInteger>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const bool pixels = args.in.kind == Element::kU8;
  if (args.shape.groups == 1) {
    const auto run = pixels ? run_integer<std::uint8_t, true> : run_integer<std::int16_t, true>;
    run(args, begin, end, scratch);
  } else {
    constexpr Numerics kIntegers = Numerics::kInteger;
    const auto run = pixels ? run_groups<kIntegers, std::uint8_t> : run_groups<kIntegers, std::int16_t>;
    run(args, begin, end, scratch);
  }
}

template struct ConvAny<Numerics::kFloat>;
template struct ConvAny<Numerics::kInteger>;

}  // namespace ovsw::OVSW_ISA::portable
