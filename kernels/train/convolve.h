// A convolution whose weights are signs, without multiplications; lanes are pixels.
//
// A sum over four channels of +-v has only 16 possible values. All 16 are computed once for a row of pixels, and every
// filter selects one by its four signs: one addition where an ordinary convolution needs four multiply-adds. The three
// columns of the window are summed separately and shifted against each other at the end, so all loads are aligned.
//
// Forward, v are signs, too, and the sums of a block of 16 channels are at most 48: they are bytes, with four times as
// many lanes as floats.
#pragma once

#include "kernels/train/lanes.h"

namespace ovsw::train::OVSW_ISA {
namespace {

constexpr int kParts = kRowBytes / kBytes;  // vectors of a row of lanes
constexpr int kGroups = kBlock / 4;         // groups of four channels in a block
constexpr int kTable = 16 * kRowBytes;      // bytes of the 16 sums of a group, for one row
constexpr int kTaps = 3 * kGroups;          // offsets of one filter, block and window row

// The 16 sums +-v0 +-v1 +-v2 +-v3; bit j of the index is set for +vj. `step` bytes lie between them.
template <typename E>
void sums_of_four(Vector<E> v0, Vector<E> v1, Vector<E> v2, Vector<E> v3, std::byte* to, int step) {
  const Vector<E> p = v0 + v1, m = v0 - v1, q = v2 + v3, n = v2 - v3;
  const Vector<E> low[4] = {-p, m, -m, p};
  const Vector<E> high[4] = {-q, n, -n, q};
  for (int i = 0; i < 16; ++i) store<E>(to + i * step, low[i & 3] + high[i >> 2]);
}

enum class Way { kSame, kDown, kUp };  // stride 1, stride 2, the gradient of stride 2

// What a convolution of E gives: bytes add up to int16.
template <typename E>
using Result = std::conditional_t<std::is_same_v<E, std::int8_t>, std::int16_t, E>;
template <typename E>
constexpr int kLanes = kRowBytes / int(sizeof(E));
template <typename E>
constexpr int kResultParts = kParts * int(sizeof(Result<E>) / sizeof(E));
template <typename E>
using ResultRow = Vector<Result<E>>[kResultParts<E>];

// Masks of the lanes that have a neighbour on the left or right in the same image.
template <typename E>
struct Borders {
  using Mask = std::conditional_t<sizeof(Result<E>) == 2, std::int16_t, std::int32_t>;
  alignas(64) Mask left[kLanes<E>] = {}, right[kLanes<E>] = {};

  Borders(int width, int images) {
    for (int i = 0; i < images; ++i) {
      for (int x = 0; x < width; ++x) {
        left[i * width + x] = Mask(-int(x > 0));
        right[i * width + x] = Mask(-int(x < width - 1));
      }
    }
  }
};

inline void widen(const Vector<float> (&from)[kParts], ResultRow<float>& to) {
  for (int p = 0; p < kParts; ++p) to[p] = from[p];
}
inline void widen(const Vector<std::int8_t> (&from)[kParts], ResultRow<std::int8_t>& to) {
  for (int p = 0; p < kParts; ++p) {
    Vector<std::int8_t, kBytes / 2> half[2];
    std::memcpy(half, &from[p], kBytes);
    for (int h = 0; h < 2; ++h) to[2 * p + h] = __builtin_convertvector(half[h], Vector<std::int16_t>);
  }
}

template <typename E, bool kUpwards>
inline void moved(const ResultRow<E>& sums, const typename Borders<E>::Mask* border, ResultRow<E>& to) {
  using V = Vector<Result<E>>;
  using Mask = typename Borders<E>::Mask;
  constexpr auto lanes = std::make_index_sequence<kBytes / sizeof(Result<E>)>{};
  constexpr int parts = kResultParts<E>;
  const V none = {};
  for (int p = 0; p < parts; ++p) {
    const V v = kUpwards ? move_up(p ? sums[p - 1] : none, sums[p], lanes)
                         : move_down(sums[p], p + 1 < parts ? sums[p + 1] : none, lanes);
    const auto mask = load<Mask>(reinterpret_cast<const std::byte*>(border) + p * kBytes);
    to[p] = reinterpret_cast<V>(reinterpret_cast<Vector<Mask>>(v) & mask);
  }
}

template <typename E>
inline void put_row(const ResultRow<E>& v, Result<E>* row, bool first) {
  std::byte* to = reinterpret_cast<std::byte*>(row);
  for (int p = 0; p < kResultParts<E>; ++p, to += kBytes) {
    store<Result<E>>(to, first ? v[p] : load<Result<E>>(to) + v[p]);
  }
}

// Adds the sums that one filter selects from one row of tables, separately for each column of the window.
template <typename E>
inline void add_row(const std::byte* middle, const std::byte* sides, const std::uint16_t* offsets,
                    Vector<E> (&sums)[3][kParts]) {
  for (int g = 0; g < kGroups; ++g) {
    for (int kx = 0; kx < 3; ++kx) {
      const std::byte* from = (kx == 1 ? middle : sides) + g * kTable + offsets[g * 3 + kx];
      for (int p = 0; p < kParts; ++p) sums[kx][p] += load<E>(from + p * kBytes);
    }
  }
}

// `from` has `channels` x `from_rows` rows of lanes (kDown: even columns, then as many with the odd ones); `to` has
// `filters` x `to_rows` (kUp: two for each, even and odd columns). `tables` holds three rows of a block's sums, for
// kDown twice.
template <typename E, Way kWay>
void convolve(const E* from, int channels, int from_rows, const std::uint16_t* offsets, int filters, Result<E>* to,
              int to_rows, const Borders<E>& borders, std::byte* tables) {
  constexpr int kPlanes = kWay == Way::kDown ? 2 : 1, kSlot = kGroups * kTable;
  const std::size_t plane = std::size_t(channels) * std::size_t(from_rows) * kLanes<E>;
  for (int block = 0; block < channels / kBlock; ++block) {
    int ready = 0;  // rows below this have their tables, the last three of them
    for (int y = 0; y < to_rows; ++y) {
      int rows[3], taps[3], count = 0;
      for (int ky = 0; ky < 3; ++ky) {
        int r = kWay == Way::kSame ? y + ky - 1 : kWay == Way::kDown ? 2 * y + ky - 1 : y + 1 - ky;
        if (kWay == Way::kUp) {
          if (r & 1) continue;
          r /= 2;
        }
        if (r < 0 || r >= from_rows) continue;
        rows[count] = r, taps[count++] = ky;
      }
      const int needed = count ? *std::max_element(rows, rows + count) + 1 : 0;
      for (; ready < needed; ++ready) {
        for (int side = 0; side < kPlanes; ++side) {
          for (int g = 0; g < kGroups; ++g) {
            const E* v =
                from + std::size_t(side) * plane +
                (std::size_t(block * kBlock + 4 * g) * std::size_t(from_rows) + std::size_t(ready)) * kLanes<E>;
            const std::size_t next = std::size_t(from_rows) * kLanes<E>;
            std::byte* sums = tables + (side * 3 + ready % 3) * kSlot + g * kTable;
            for (int p = 0; p < kParts; ++p) {
              const E* lanes = v + p * kBytes / int(sizeof(E));
              sums_of_four<E>(load<E>(lanes), load<E>(lanes + next), load<E>(lanes + 2 * next),
                              load<E>(lanes + 3 * next), sums + p * kBytes, kRowBytes);
            }
          }
        }
      }
      const std::uint16_t* filter = offsets + std::size_t(block) * std::size_t(filters) * 3 * kTaps;
      for (int f = 0; f < filters; ++f, filter += 3 * kTaps) {
        Vector<E> sums[3][kParts] = {};
        for (int i = 0; i < count; ++i) {
          const std::byte* row = tables + rows[i] % 3 * kSlot;
          add_row<E>(row, row + (kPlanes - 1) * 3 * kSlot, filter + taps[i] * kTaps, sums);
        }
        ResultRow<E> column[3], side;
        for (int kx = 0; kx < 3; ++kx) widen(sums[kx], column[kx]);
        Result<E>* row = to + (std::size_t(f) * std::size_t(to_rows) + std::size_t(y)) * kLanes<E>;
        if constexpr (kWay == Way::kUp) {
          row += (std::size_t(f) * std::size_t(to_rows) + std::size_t(y)) * kLanes<E>;
          put_row<E>(column[1], row, block == 0);
          moved<E, false>(column[0], borders.right, side);
          for (int p = 0; p < kResultParts<E>; ++p) side[p] += column[2][p];
          put_row<E>(side, row + kLanes<E>, block == 0);
        } else {
          moved<E, true>(column[0], borders.left, side);
          for (int p = 0; p < kResultParts<E>; ++p) side[p] += column[1][p];
          if constexpr (kWay == Way::kSame) {
            ResultRow<E> other;
            moved<E, false>(column[2], borders.right, other);
            for (int p = 0; p < kResultParts<E>; ++p) side[p] += other[p];
          } else {
            for (int p = 0; p < kResultParts<E>; ++p) side[p] += column[2][p];
          }
          put_row<E>(side, row, block == 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ovsw::train::OVSW_ISA
