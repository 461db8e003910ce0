// The gradient of binary weights; lanes are output channels:
//
//     grad_w[o][i][tap] = sum over pixels of s[i] * g[o],   s = +-1
//
// As in convolve.h four signs select one of 16 sums; here they are the signs s of four neighbouring pixels, and the
// sums are those of g at these pixels.
#pragma once

#include "kernels/train/convolve.h"

namespace ovsw::train::OVSW_ISA {
namespace {

constexpr int kBlockParts = kBlock * int(sizeof(float)) / kBytes;  // vectors of 16 output channels
constexpr int kPixelGroups = kFloats / 4;                          // of four pixels in a row of lanes
constexpr int kChannelRow = kBlock * int(sizeof(float));
constexpr int kPixelTable = 16 * kChannelRow;  // bytes of the 16 sums of four pixels
constexpr int kRowsTogether = 2;               // rows whose tables fit in the first-level cache

// 16 channels x 32 pixels (rows `step` apart) to 32 pixels x 16 channels.
inline void transpose(const float* from, std::size_t step, float* to) {
  using Four = Vector<float, 4>;
  for (int c = 0; c < kBlock; c += 4) {
    const float* rows = from + std::size_t(c) * step;
    for (int x = 0; x < kFloats; x += 4) {
      const Four a = get<4>(rows + x), b = get<4>(rows + step + x);
      const Four e = get<4>(rows + 2 * step + x), d = get<4>(rows + 3 * step + x);
      const Four ab = OVSW_SHUFFLE(a, b, 0, 4, 1, 5), ab2 = OVSW_SHUFFLE(a, b, 2, 6, 3, 7);
      const Four ed = OVSW_SHUFFLE(e, d, 0, 4, 1, 5), ed2 = OVSW_SHUFFLE(e, d, 2, 6, 3, 7);
      put(to + (x + 0) * kBlock + c, OVSW_SHUFFLE(ab, ed, 0, 1, 4, 5));
      put(to + (x + 1) * kBlock + c, OVSW_SHUFFLE(ab, ed, 2, 3, 6, 7));
      put(to + (x + 2) * kBlock + c, OVSW_SHUFFLE(ab2, ed2, 0, 1, 4, 5));
      put(to + (x + 3) * kBlock + c, OVSW_SHUFFLE(ab2, ed2, 2, 3, 6, 7));
    }
  }
}

// Adds one row of pixels to the gradients of two input channels, three columns of the window each.
inline void add_pixels(const std::byte* table, const std::uint32_t* one, const std::uint32_t* two,
                       Vector<float> (&sums)[2][3][kBlockParts]) {
  std::uint64_t bits[2][3];
  for (int kx = 0; kx < 3; ++kx) {
    bits[0][kx] = std::uint64_t(one[kx]) * kChannelRow;
    bits[1][kx] = std::uint64_t(two[kx]) * kChannelRow;
  }
  for (int g = 0; g < kPixelGroups; ++g, table += kPixelTable) {
    for (int i = 0; i < 2; ++i) {
      for (int kx = 0; kx < 3; ++kx) {
        const std::byte* from = table + (bits[i][kx] & (15 * kChannelRow));
        bits[i][kx] >>= 4;
        for (int p = 0; p < kBlockParts; ++p) sums[i][kx][p] += load<float>(from + p * kBytes);
      }
    }
  }
}

// The contents of a row of lanes: output columns [start, start + width) of images [first, first + count), side by side,
// each with `left` and `right` more columns that its neighbours need.
struct Pack {
  int first, count, start, width, left, right;

  int lanes() const { return left + width + right; }  // of an image
};

// Pixels outside the image were summed with a sign of -1: adds them back.
inline void add_edges(const Unit& u, const Pack& pack, const float* pixels, int channels, float* grad_w) {
  float edge[3][kBlock] = {};
  for (int j = 0; j < pack.count; ++j) {
    const float* first = pixels + std::size_t(j * pack.lanes() + pack.left) * kBlock;
    const float* last = first + (pack.width - 1) * kBlock;
    for (int k = 0; k < kBlock && pack.start == 0; ++k) edge[0][k] += first[k];
    if (pack.start + pack.width == u.out_w() && (u.stride == 1 || u.w % 2)) {
      for (int k = 0; k < kBlock; ++k) edge[2][k] += last[k];
    }
  }
  for (int i = 0; i < channels; ++i) {
    for (int kx = 0; kx < 3; kx += 2) {
      for (int k = 0; k < kBlock; ++k) grad_w[(i * 3 + kx) * kBlock + k] += edge[kx][k];
    }
  }
}

// `bits`: per input channel, row and window column the signs that the column meets, one bit per lane.
inline void grad_of_weights(const Unit& u, int channels, const Pack& pack, const float* gd, const std::uint32_t* bits,
                            float* pixels, std::byte* tables, float* grad_w) {
  const int ho = u.out_h();
  for (int block = 0; block < u.cout / kBlock; ++block) {
    float* of_block = grad_w + std::size_t(block) * 9 * std::size_t(channels) * kBlock;
    const std::size_t step = std::size_t(ho) * kFloats;
    for (int y = 0; y < ho; y += kRowsTogether) {
      const int rows = std::min(kRowsTogether, ho - y);
      for (int r = 0; r < rows; ++r) {
        float* row = pixels + r * kFloats * kBlock;
        transpose(gd + std::size_t(block) * kBlock * step + std::size_t(y + r) * kFloats, step, row);
        for (int g = 0; g < kPixelGroups; ++g) {
          std::byte* table = tables + (r * kPixelGroups + g) * kPixelTable;
          for (int p = 0; p < kBlockParts; ++p) {
            const float* v = row + 4 * g * kBlock + p * kBytes / int(sizeof(float));
            sums_of_four<float>(load<float>(v), load<float>(v + kBlock), load<float>(v + 2 * kBlock),
                                load<float>(v + 3 * kBlock), table + p * kBytes, kChannelRow);
          }
        }
      }
      for (int ky = 0; ky < 3; ++ky) {
        float* of_row = of_block + std::size_t(ky) * std::size_t(channels) * 3 * kBlock;
        for (int r = 0; r < rows; ++r) {
          const int from = u.stride * (y + r) + ky - 1;
          if (from >= 0 && from < u.h) add_edges(u, pack, pixels + r * kFloats * kBlock, channels, of_row);
        }
        for (int i = 0; i < channels; i += 2) {
          auto* to = reinterpret_cast<std::byte*>(of_row + std::size_t(i) * 3 * kBlock);
          Vector<float> sums[2][3][kBlockParts];
          for (int k = 0; k < 6 * kBlockParts; ++k) {
            sums[k / (3 * kBlockParts)][k / kBlockParts % 3][k % kBlockParts] = load<float>(to + k * kBytes);
          }
          for (int r = 0; r < rows; ++r) {
            const int from = u.stride * (y + r) + ky - 1;
            if (from < 0 || from >= u.h) continue;
            const std::uint32_t* one = bits + (std::size_t(i) * std::size_t(u.h) + std::size_t(from)) * 3;
            add_pixels(tables + r * kPixelGroups * kPixelTable, one, one + std::size_t(u.h) * 3, sums);
          }
          for (int k = 0; k < 6 * kBlockParts; ++k) {
            store<float>(to + k * kBytes, sums[k / (3 * kBlockParts)][k / kBlockParts % 3][k % kBlockParts]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ovsw::train::OVSW_ISA
