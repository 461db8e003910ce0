// The real-valued convolution: patches times panels of output channels.
//
// Float (stem, shortcuts, classifier), kPixels patches and kLanes output channels at a time:
//     packed[panel][k][lane],  k over (window_h, window_w, in_c) as in the file
// Sums are taken in runs of kRun products that are then added up. That costs little and halves the rounding error of
// one long float sum: the signs of the first binary layer hang on it. The order of additions is the same for every
// pixel whatever its place in a block, so results do not depend on how pixels are split over threads.
//
// Integers (pixels and the stream): a patch of int16 against the weights of kRows channels at a time, as they are in
// the file. The loops over products are of the form that compilers turn into multiply-add instructions for int16 pairs.

#include "kernels/portable/epilogue.h"
#include "kernels/portable/kernels.h"
#include "kernels/portable/window.h"

namespace ovsw::OVSW_ISA::plain {
namespace {

constexpr int kRun = 32;

// The widest vector of the instruction set compiled for, and the block of vectors x pixels that was fastest with it
// (measured on x86; on ARM as many sums as fit its 32 registers).
#if defined(__AVX512F__)
constexpr int kVector = 16, kVectors = 4, kPixels = 4;
#elif defined(__AVX__)
constexpr int kVector = 8, kVectors = 1, kPixels = 8;
#elif defined(__aarch64__)
constexpr int kVector = 4, kVectors = 4, kPixels = 6;
#else
constexpr int kVector = 4, kVectors = 4, kPixels = 2;
#endif
constexpr int kLanes = kVector * kVectors;
typedef float Vector __attribute__((vector_size(kVector * sizeof(float))));

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
        std::memcpy(&w, panel + std::int64_t(k) * kLanes + v * kVector, sizeof w);
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

template <typename In>
OVSW_INLINE void run_integer(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<Numerics::kInteger> epilogue(args);
  const int size = patch_size(s), first = args.first_channel, last = args.last_channel;
  const auto* shift = args.constant<std::int32_t>(kShift);
  auto* q = static_cast<std::int32_t*>(scratch);
  auto* patch = reinterpret_cast<std::int16_t*>(q + padded_rows(s));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const int oy = int(pixel / s.out_w), ox = int(pixel % s.out_w);
    gather(s, static_cast<const In*>(args.in.data), s.in_c, oy, ox, patch);
    const auto* weights = static_cast<const std::int16_t*>(args.weights) + std::int64_t(first) * size;
    for (int c = first; c < last; c += kRows, weights += std::int64_t(kRows) * size) {
      std::int32_t sum[kRows] = {};
      for (int k = 0; k < size; ++k) {
        for (int r = 0; r < kRows; ++r) sum[r] += patch[k] * weights[std::int64_t(r) * size + k];
      }
      for (int r = 0; r < kRows; ++r) q[c + r] = sum[r];
    }
    const int border = args.border.row_class[oy] + args.border.col_class[ox];
    const std::int32_t* base = args.border.base + std::int64_t(border) * padded_channels(s.out_c);
    for (int c = first; c < last; ++c) q[c] = (q[c] + base[c]) >> shift[c];
    finish_pixel_call(epilogue, q, pixel, first, last);
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
      gather(s, in, s.in_c, int(pixel / s.out_w), int(pixel % s.out_w), patches + p * std::int64_t(size));
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
    run_integer<std::uint8_t>(args, begin, end, scratch);
  } else {
    run_integer<std::int16_t>(args, begin, end, scratch);
  }
}

}  // namespace ovsw::OVSW_ISA::plain
