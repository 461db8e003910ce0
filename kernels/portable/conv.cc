// The real-valued convolution: patches of kPixels output pixels times panels of kLanes output channels.
//
//     packed[panel][k][lane],  k over (kernel_h, kernel_w, in_c) as in the file
//
// Sums are taken in runs of kRun products that are then added up. That costs little and halves the rounding error of
// one long float sum: the signs of the first binary layer hang on it. The order of additions is the same for every
// pixel whatever its place in a block, so results do not depend on how pixels are split over threads.

#include "kernels/portable/conv.h"

#include "kernels/portable/epilogue.h"

namespace ovsw::OVSW_PORTABLE {
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

int patch_size(const Shape& s) { return s.kernel_h * s.kernel_w * s.in_c; }

OVSW_INLINE void gather(const Shape& s, const float* in, int oy, int ox, float* patch) {
  const int y0 = oy * s.stride_h - s.pad_h;
  const int x0 = ox * s.stride_w - s.pad_w;
  const int row = s.kernel_w * s.in_c;
  const int kx0 = x0 < 0 ? -x0 : 0;  // taps [kx0, kx1) lie in the image
  const int kx1 = x0 + s.kernel_w > s.in_w ? s.in_w - x0 : s.kernel_w;
  for (int ky = 0; ky < s.kernel_h; ++ky, patch += row) {
    const int y = y0 + ky;
    const bool inside = y >= 0 && y < s.in_h && kx0 < kx1;
    if (!inside || kx1 - kx0 < s.kernel_w) std::memset(patch, 0, std::size_t(row) * sizeof(float));
    if (!inside) continue;
    const float* from = in + (std::int64_t(y) * s.in_w + x0 + kx0) * s.in_c;
    std::memcpy(patch + kx0 * s.in_c, from, std::size_t(kx1 - kx0) * s.in_c * sizeof(float));
  }
}

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

}  // namespace

std::size_t conv_packed_bytes(const Shape& s) {
  return std::size_t(ceil_div(s.out_c, kLanes)) * patch_size(s) * kLanes * sizeof(float);
}

void conv_pack(const Shape& s, const float* weights, void* packed) {
  const int size = patch_size(s);
  auto* out = static_cast<float*>(packed);
  std::memset(out, 0, conv_packed_bytes(s));
  for (int c = 0; c < s.out_c; ++c) {
    float* panel = out + std::int64_t(c / kLanes) * size * kLanes + c % kLanes;
    for (int k = 0; k < size; ++k) panel[std::int64_t(k) * kLanes] = weights[std::int64_t(c) * size + k];
  }
}

std::size_t conv_scratch_bytes(const Shape& s) {
  return kPixels * (std::size_t(patch_size(s)) + std::size_t(s.out_c)) * sizeof(float);
}

void conv(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const int size = patch_size(s);
  const auto* in = static_cast<const float*>(args.in);
  const auto* weights = static_cast<const float*>(args.weights);
  auto* patches = static_cast<float*>(scratch);
  float* acc = patches + std::int64_t(kPixels) * size;

  for (std::int64_t first = begin; first < end; first += kPixels) {
    const int pixels = end - first < kPixels ? int(end - first) : kPixels;
    for (int p = 0; p < pixels; ++p) {
      gather(s, in, int((first + p) / s.out_w), int((first + p) % s.out_w), patches + std::int64_t(p) * size);
    }
    for (int c = 0; c < s.out_c; c += kLanes) {
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
      finish_pixel(args.epilogue, acc + std::int64_t(p) * s.out_c, first + p, s.out_c);
    }
  }
}

}  // namespace ovsw::OVSW_PORTABLE
