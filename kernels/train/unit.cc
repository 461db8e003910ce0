// Binary convolutions forward and back without multiplications, once per instruction set.
//
// A sum over four channels of +-v has only 16 possible values. All 16 are made once for a row of pixels, and every
// filter then takes the one that its four signs name: one addition where a multiplying convolution needs four.
//
//   forward:           dots[o] = sum over i, taps of w[o][i][tap] * a[i], a = +-1 in int16; lanes are pixels
//   gradient of a:     the same with the weights turned around, in float; lanes are pixels
//   gradient of w:     sum over pixels of a[i] * g[o]: here the signs are those of four neighbouring pixels of a, the
//   16
//                      sums those of g at these pixels; lanes are output channels
//
// The three columns of the window are summed apart and shifted against each other at the end, so all loads are aligned.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/train/kernels.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

// Lanes of two vectors by constant numbers; gcc before 12 has it in another form.
#if defined(__clang__) || __GNUC__ >= 12
#define OVSW_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define OVSW_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype((a) > (b)){__VA_ARGS__})
#endif

namespace ovsw::train::OVSW_ISA {
namespace {

#if defined(__AVX512BW__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

template <typename E>
struct VectorOf {
  typedef E type __attribute__((vector_size(kBytes)));
};
template <typename E>
using Vector = typename VectorOf<E>::type;

constexpr int kParts = kRowBytes / kBytes;                         // vectors of a row of lanes
constexpr int kBlockParts = kBlock * int(sizeof(float)) / kBytes;  // vectors of 16 output channels
constexpr int kGroups = kBlock / 4;                                // groups of four channels in a block
constexpr int kTable = 16 * kRowBytes;                             // bytes of the 16 sums of a group, for one row
constexpr int kTaps = 3 * kGroups;                                 // offsets of one filter, block and window row

template <typename E>
Vector<E> load(const void* p) {
  return *static_cast<const Vector<E>*>(p);
}
template <typename E>
void store(void* p, Vector<E> v) {
  *static_cast<Vector<E>*>(p) = v;
}

// Lanes moved by one, across two vectors: (last of a, b without its last), and (a without its first, first of b).
template <typename V, std::size_t... I>
V move_up(V a, V b, std::index_sequence<I...>) {
  return OVSW_SHUFFLE(a, b, int(sizeof...(I) - 1 + I)...);
}
template <typename V, std::size_t... I>
V move_down(V a, V b, std::index_sequence<I...>) {
  return OVSW_SHUFFLE(a, b, int(1 + I)...);
}

// The 16 sums +-v0 +-v1 +-v2 +-v3; bit j of the index is set for +vj. `step` bytes lie between them.
template <typename E>
void sums_of_four(Vector<E> v0, Vector<E> v1, Vector<E> v2, Vector<E> v3, std::byte* to, int step) {
  const Vector<E> p = v0 + v1, m = v0 - v1, q = v2 + v3, n = v2 - v3;
  const Vector<E> low[4] = {-p, m, -m, p};
  const Vector<E> high[4] = {-q, n, -n, q};
  for (int i = 0; i < 16; ++i) store<E>(to + i * step, low[i & 3] + high[i >> 2]);
}

// --- convolutions with signs as weights, lanes are pixels ------------------------------------------------------------

enum class Way { kSame, kDown, kUp };  // stride 1; stride 2; the gradient of stride 2

// Which lanes have a neighbour on the left or right in the same image.
template <typename E>
struct Borders {
  alignas(64) E left[kRowBytes / sizeof(E)], right[kRowBytes / sizeof(E)];

  Borders(int width, int images) {
    std::memset(left, 0, sizeof left);
    std::memset(right, 0, sizeof right);
    for (int i = 0; i < images; ++i) {
      for (int x = 0; x < width; ++x) {
        left[i * width + x] = E(x > 0);
        right[i * width + x] = E(x < width - 1);
      }
    }
  }
};

template <typename E>
using Sums = Vector<E>[3][kParts];

// Adds what one row of tables gives one filter, each column of the window apart.
template <typename E>
inline void add_row(const std::byte* middle, const std::byte* sides, const std::uint16_t* offsets, Sums<E>& sums) {
  for (int g = 0; g < kGroups; ++g) {
    for (int kx = 0; kx < 3; ++kx) {
      const std::byte* from = (kx == 1 ? middle : sides) + g * kTable + offsets[g * 3 + kx];
      for (int p = 0; p < kParts; ++p) sums[kx][p] += load<E>(from + p * kBytes);
    }
  }
}

template <typename E, bool kUpwards>
inline void moved(const Vector<E> (&sums)[kParts], const E* border, Vector<E> (&to)[kParts]) {
  constexpr auto lanes = std::make_index_sequence<kBytes / sizeof(E)>{};
  const Vector<E> none = {};
  for (int p = 0; p < kParts; ++p) {
    const Vector<E> v = kUpwards ? move_up(p ? sums[p - 1] : none, sums[p], lanes)
                                 : move_down(sums[p], p + 1 < kParts ? sums[p + 1] : none, lanes);
    to[p] = v * load<E>(reinterpret_cast<const std::byte*>(border) + p * kBytes);
  }
}

template <typename E>
inline void put(const Vector<E> (&v)[kParts], E* row, bool first) {
  std::byte* to = reinterpret_cast<std::byte*>(row);
  for (int p = 0; p < kParts; ++p, to += kBytes) store<E>(to, first ? v[p] : load<E>(to) + v[p]);
}

// `from` has `channels` x `from_rows` rows of lanes (kDown: even columns, then as many with the odd ones); `to` has
// `filters` x `to_rows` (kUp: two for each, even and odd columns). `tables` holds three rows of a block's sums.
template <typename E, Way kWay>
void convolve(const E* from, int channels, int from_rows, const std::uint16_t* offsets, int filters, E* to, int to_rows,
              const Borders<E>& borders, std::byte* tables) {
  constexpr int kLanes = kRowBytes / int(sizeof(E)), kPlanes = kWay == Way::kDown ? 2 : 1;
  constexpr int kSlot = kGroups * kTable;
  const std::size_t plane = std::size_t(channels) * std::size_t(from_rows) * kLanes;
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
            const E* v = from + std::size_t(side) * plane +
                         (std::size_t(block * kBlock + 4 * g) * std::size_t(from_rows) + std::size_t(ready)) * kLanes;
            const std::size_t next = std::size_t(from_rows) * kLanes;
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
        Sums<E> sums = {};
        for (int i = 0; i < count; ++i) {
          const std::byte* row = tables + rows[i] % 3 * kSlot;
          add_row<E>(row, row + (kPlanes - 1) * 3 * kSlot, filter + taps[i] * kTaps, sums);
        }
        Vector<E> side[kParts];
        if constexpr (kWay == Way::kUp) {
          E* row = to + (std::size_t(f) * std::size_t(to_rows) + std::size_t(y)) * 2 * kLanes;
          put<E>(sums[1], row, block == 0);
          moved<E, false>(sums[0], borders.right, side);
          for (int p = 0; p < kParts; ++p) side[p] += sums[2][p];
          put<E>(side, row + kLanes, block == 0);
        } else {
          moved<E, true>(sums[0], borders.left, side);
          for (int p = 0; p < kParts; ++p) side[p] += sums[1][p];
          if constexpr (kWay == Way::kSame) {
            Vector<E> other[kParts];
            moved<E, false>(sums[2], borders.right, other);
            for (int p = 0; p < kParts; ++p) side[p] += other[p];
          } else {
            for (int p = 0; p < kParts; ++p) side[p] += sums[2][p];
          }
          put<E>(side, to + (std::size_t(f) * std::size_t(to_rows) + std::size_t(y)) * kLanes, block == 0);
        }
      }
    }
  }
}

// --- forward ---------------------------------------------------------------------------------------------------------

std::byte* take(std::byte*& scratch, std::size_t bytes) {
  std::byte* taken = scratch;
  scratch += (bytes + 63) / 64 * 64;
  return taken;
}

// Both sums of an image's values: floats for 256 of them, then doubles.
void moments(const float* x, std::size_t count, double* sum, double* squares) {
  *sum = *squares = 0;
  std::size_t i = 0;
  for (; i + 256 <= count; i += 256) {
    float s[16] = {}, q[16] = {};
    for (std::size_t k = 0; k < 256; k += 16) {
      for (std::size_t l = 0; l < 16; ++l) {
        const float v = x[i + k + l];
        s[l] += v, q[l] += v * v;
      }
    }
    for (int l = 0; l < 16; ++l) *sum += s[l], *squares += q[l];
  }
  for (; i < count; ++i) *sum += x[i], *squares += double(x[i]) * x[i];
}

std::size_t forward_planes(const Unit& u) {
  return std::size_t(u.stride) * std::size_t(u.cin) * std::size_t(u.h) * kRowBytes;
}

std::size_t forward_scratch(const Unit& u) {
  return forward_planes(u) + std::size_t(u.cout) * std::size_t(u.out_h()) * kRowBytes + 6 * kGroups * kTable;
}

void forward(const Forward& f, int first_pack, int last_pack, std::byte* scratch) {
  const Unit& u = f.unit;
  const int width = u.out_w(), images = u.images(kShorts), ho = u.out_h();
  const std::size_t plane = std::size_t(u.cin) * std::size_t(u.h) * kShorts;
  auto* signs = reinterpret_cast<std::int16_t*>(take(scratch, forward_planes(u)));
  auto* dots = reinterpret_cast<std::int16_t*>(take(scratch, std::size_t(u.cout) * std::size_t(ho) * kRowBytes));
  std::byte* tables = scratch;
  const Borders<std::int16_t> borders(width, images);
  for (int pack = first_pack; pack < last_pack; ++pack) {
    const int first = pack * images, count = std::min(images, u.n - first);
    std::memset(signs, 0, forward_planes(u));
    for (int j = 0; j < count; ++j) {
      const float* image = f.x + std::size_t(first + j) * u.in_size();
      double sum, squares;
      moments(image, u.in_size(), &sum, &squares);
      const double n = double(u.in_size()), mean = sum / n;
      f.deviation[first + j] = float(std::sqrt(std::max(0.0, squares - sum * mean) / (n - 1) + double(f.eps)));
      std::int64_t zeros = 0;
      for (int row = 0; row < u.cin * u.h; ++row) {
        const float* x = image + std::size_t(row) * std::size_t(u.w);
        std::int16_t* to = signs + std::size_t(row) * kShorts + j * width;
        int none = 0;
        if (u.stride == 1) {
          for (int i = 0; i < u.w; ++i) {
            to[i] = std::int16_t(x[i] >= 0 ? 1 : -1);
            none += x[i] == 0;
          }
        } else {
          for (int i = 0; i < u.w; ++i) {
            to[std::size_t(i & 1) * plane + std::size_t(i / 2)] = std::int16_t(x[i] >= 0 ? 1 : -1);
            none += x[i] == 0;
          }
        }
        zeros += none;
      }
      f.zeros[first + j] = zeros;
    }
    if (u.stride == 1) {
      convolve<std::int16_t, Way::kSame>(signs, u.cin, u.h, f.offsets, u.cout, dots, ho, borders, tables);
    } else {
      convolve<std::int16_t, Way::kDown>(signs, u.cin, u.h, f.offsets, u.cout, dots, ho, borders, tables);
    }
    for (int j = 0; j < count; ++j) {
      std::int16_t* to = f.dots + std::size_t(first + j) * u.out_size();
      std::int64_t* sums = f.sums + std::size_t(first + j) * std::size_t(u.cout) * 2;
      for (int c = 0; c < u.cout; ++c) {
        std::int64_t total = 0, squares = 0;
        for (int y = 0; y < ho; ++y, to += width) {
          const std::int16_t* row = dots + (std::size_t(c) * std::size_t(ho) + std::size_t(y)) * kShorts + j * width;
          int s = 0, q = 0;
          for (int x = 0; x < width; ++x) {
            to[x] = row[x];
            s += row[x];
            q += row[x] * row[x];
          }
          total += s, squares += q;
        }
        sums[2 * c] = total, sums[2 * c + 1] = squares;
      }
    }
  }
}

// --- backward --------------------------------------------------------------------------------------------------------

// g inside the clamp, 0 outside; a NaN of y passes it on.
inline float inside(float g, float y, float lo, float hi) { return y <= lo || y >= hi ? 0.0f : g; }

// The gradient of the dots of one pack, (channel, row, lane).
void grad_of_dots(const Backward& b, int first, int count, float* to) {
  const Unit& u = b.unit;
  const int width = u.out_w(), ho = u.out_h();
  for (int c = 0; c < u.cout; ++c) {
    const float scale = b.scale[c], slope = b.slope ? b.slope[c] : 0.0f, offset = b.slope ? b.offset[c] : 0.0f;
    for (int y = 0; y < ho; ++y, to += kFloats) {
      for (int j = 0; j < count; ++j) {
        const std::size_t at = std::size_t(first + j) * u.out_size() +
                               (std::size_t(c) * std::size_t(ho) + std::size_t(y)) * std::size_t(width);
        const float* g = b.grad_y + at;
        float* row = to + j * width;
        if (b.y && b.slope) {
          const float* v = b.y + at;
          const std::int16_t* dot = b.dots + at;
          for (int x = 0; x < width; ++x)
            row[x] = scale * inside(g[x], v[x], b.lo, b.hi) + slope * float(dot[x]) + offset;
        } else if (b.y) {
          const float* v = b.y + at;
          for (int x = 0; x < width; ++x) row[x] = scale * inside(g[x], v[x], b.lo, b.hi);
        } else if (b.slope) {
          const std::int16_t* dot = b.dots + at;
          for (int x = 0; x < width; ++x) row[x] = scale * g[x] + slope * float(dot[x]) + offset;
        } else {
          for (int x = 0; x < width; ++x) row[x] = scale * g[x];
        }
      }
    }
  }
}

// ga times the slope of the sign's stand-in, 2 - 2|x / deviation| where positive, over the deviation; plus the
// residual's.
void grad_of_input(const Backward& b, int first, int count, const float* ga) {
  const Unit& u = b.unit;
  const int width = u.out_w();
  for (int j = 0; j < count; ++j) {
    const std::size_t at = std::size_t(first + j) * u.in_size();
    const float *x = b.x + at, *g = b.grad_y + at, *y = b.y ? b.y + at : nullptr;
    float* to = b.grad_x + at;
    const float inverse = 1.0f / b.deviation[first + j], twice = 2 * inverse, steep = twice * inverse;
    for (int row = 0; row < u.cin * u.h; ++row, x += u.w, g += u.w, to += u.w) {
      if (u.stride == 1) {
        const float* from = ga + std::size_t(row) * kFloats + j * width;
        for (int i = 0; i < u.w; ++i) {
          const float window = twice - steep * std::fabs(x[i]);
          to[i] = from[i] * (window > 0 ? window : 0.0f);
        }
        if (b.add_residual && y) {
          for (int i = 0; i < u.w; ++i) to[i] += inside(g[i], y[i], b.lo, b.hi);
        } else if (b.add_residual) {
          for (int i = 0; i < u.w; ++i) to[i] += g[i];
        }
        if (y) y += u.w;
      } else {
        const float* from = ga + std::size_t(row) * 2 * kFloats + j * width;
        for (int i = 0; i < u.w; ++i) {
          const float window = twice - steep * std::fabs(x[i]);
          to[i] = from[(i & 1) * kFloats + i / 2] * (window > 0 ? window : 0.0f);
        }
      }
    }
  }
}

inline std::uint32_t not_negative(const float* x, int count) {
  std::uint32_t bits = 0;
  int i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    bits |= std::uint32_t(_mm512_cmp_ps_mask(_mm512_loadu_ps(x + i), _mm512_setzero_ps(), _CMP_GE_OQ)) << i;
  }
#endif
#if defined(__AVX2__)
  for (; i + 8 <= count; i += 8) {
    const __m256 at_least = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_setzero_ps(), _CMP_GE_OQ);
    bits |= std::uint32_t(_mm256_movemask_ps(at_least)) << i;
  }
#endif
  for (; i < count; ++i) bits |= std::uint32_t(x[i] >= 0) << i;
  return bits;
}

// Every second bit, from bit 0.
inline std::uint32_t even_bits(std::uint32_t v) {
  v &= 0x55555555u;
  v = (v | v >> 1) & 0x33333333u;
  v = (v | v >> 2) & 0x0F0F0F0Fu;
  v = (v | v >> 4) & 0x00FF00FFu;
  return (v | v >> 8) & 0x0000FFFFu;
}

// Per input channel, row and window column: the signs that the column meets, a bit per lane. Outside is a -1.
void sign_bits(const Backward& b, int first, int count, std::uint32_t* bits) {
  const Unit& u = b.unit;
  const int width = u.out_w();
  const std::uint32_t all = width == 32 ? ~0u : (1u << width) - 1;
  for (int row = 0; row < u.cin * u.h; ++row, bits += 3) {
    bits[0] = bits[1] = bits[2] = 0;
    for (int j = 0; j < count; ++j) {
      const float* x = b.x + std::size_t(first + j) * u.in_size() + std::size_t(row) * std::size_t(u.w);
      const std::uint32_t signs = not_negative(x, u.w);
      const std::uint32_t odd = u.stride == 1 ? signs >> 1 : even_bits(signs >> 1);
      const std::uint32_t left = u.stride == 1 ? signs << 1 : odd << 1;
      bits[0] |= (left & all) << j * width;
      bits[1] |= (u.stride == 1 ? signs : even_bits(signs)) << j * width;
      bits[2] |= odd << j * width;
    }
  }
}

// 16 channels x 32 pixels (rows `step` apart) to 32 pixels x 16 channels.
void transpose(const float* from, std::size_t step, float* to) {
  typedef float Four __attribute__((vector_size(16)));
  for (int c = 0; c < kBlock; c += 4) {
    const float* rows = from + std::size_t(c) * step;
    for (int x = 0; x < kFloats; x += 4) {
      Four a, b, e, d;
      std::memcpy(&a, rows + x, 16), std::memcpy(&b, rows + step + x, 16);
      std::memcpy(&e, rows + 2 * step + x, 16), std::memcpy(&d, rows + 3 * step + x, 16);
      const Four ab = OVSW_SHUFFLE(a, b, 0, 4, 1, 5), ab2 = OVSW_SHUFFLE(a, b, 2, 6, 3, 7);
      const Four ed = OVSW_SHUFFLE(e, d, 0, 4, 1, 5), ed2 = OVSW_SHUFFLE(e, d, 2, 6, 3, 7);
      const Four out[4] = {OVSW_SHUFFLE(ab, ed, 0, 1, 4, 5), OVSW_SHUFFLE(ab, ed, 2, 3, 6, 7),
                           OVSW_SHUFFLE(ab2, ed2, 0, 1, 4, 5), OVSW_SHUFFLE(ab2, ed2, 2, 3, 6, 7)};
      for (int i = 0; i < 4; ++i) std::memcpy(to + (x + i) * kBlock + c, &out[i], 16);
    }
  }
}

constexpr int kPixelGroups = kFloats / 4;  // of four pixels in a row of lanes
constexpr int kChannelRow = kBlock * int(sizeof(float));
constexpr int kPixelTable = 16 * kChannelRow;  // bytes of the 16 sums of four pixels
constexpr int kRowsTogether = 2;               // rows whose tables fit in the first-level cache

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

// The sum over pixels of the outside of the image was taken with a sign of -1: adds it back.
void add_edges(const Unit& u, const float* pixels, int images, float* grad_w) {
  const int width = u.out_w();
  float edge[3][kBlock] = {};
  for (int j = 0; j < images; ++j) {
    const float* left = pixels + std::size_t(j) * std::size_t(width) * kBlock;
    const float* right = left + (width - 1) * kBlock;
    for (int k = 0; k < kBlock; ++k) edge[0][k] += left[k];
    if (u.stride == 1 || u.w % 2) {
      for (int k = 0; k < kBlock; ++k) edge[2][k] += right[k];
    }
  }
  for (int i = 0; i < u.cin; ++i) {
    for (int kx = 0; kx < 3; kx += 2) {
      for (int k = 0; k < kBlock; ++k) grad_w[(i * 3 + kx) * kBlock + k] += edge[kx][k];
    }
  }
}

void grad_of_weights(const Unit& u, int images, const float* gd, const std::uint32_t* bits, float* pixels,
                     std::byte* tables, float* grad_w) {
  const int ho = u.out_h();
  for (int block = 0; block < u.cout / kBlock; ++block) {
    float* of_block = grad_w + std::size_t(block) * 9 * std::size_t(u.cin) * kBlock;
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
        float* of_row = of_block + std::size_t(ky) * std::size_t(u.cin) * 3 * kBlock;
        for (int r = 0; r < rows; ++r) {
          const int from = u.stride * (y + r) + ky - 1;
          if (from >= 0 && from < u.h) add_edges(u, pixels + r * kFloats * kBlock, images, of_row);
        }
        for (int i = 0; i < u.cin; i += 2) {
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

std::size_t backward_parts(const Unit& u, std::size_t (&bytes)[5]) {
  bytes[0] = std::size_t(u.cout) * std::size_t(u.out_h()) * kRowBytes;                    // gradient of the dots
  bytes[1] = std::size_t(u.stride) * std::size_t(u.cin) * std::size_t(u.h) * kRowBytes;   // that of the signs
  bytes[2] = std::size_t(u.cin) * std::size_t(u.h) * 3 * sizeof(std::uint32_t);           // bits
  bytes[3] = std::size_t(kRowsTogether) * kFloats * kBlock * sizeof(float);               // transposed rows
  bytes[4] = std::max(3 * kGroups * kTable, kRowsTogether * kPixelGroups * kPixelTable);  // tables
  std::size_t total = 0;
  for (std::size_t b : bytes) total += (b + 63) / 64 * 64;
  return total;
}

std::size_t backward_scratch(const Unit& u) {
  std::size_t bytes[5];
  return backward_parts(u, bytes);
}

void backward(const Backward& b, int first_pack, int last_pack, float* grad_w, std::byte* scratch) {
  const Unit& u = b.unit;
  const int images = u.images(kFloats), ho = u.out_h();
  std::size_t bytes[5];
  backward_parts(u, bytes);
  auto* gd = reinterpret_cast<float*>(take(scratch, bytes[0]));
  auto* ga = reinterpret_cast<float*>(take(scratch, bytes[1]));
  auto* bits = reinterpret_cast<std::uint32_t*>(take(scratch, bytes[2]));
  auto* pixels = reinterpret_cast<float*>(take(scratch, bytes[3]));
  std::byte* tables = scratch;
  const Borders<float> borders(u.out_w(), images);
  std::memset(gd, 0, bytes[0]);
  for (int pack = first_pack; pack < last_pack; ++pack) {
    const int first = pack * images, count = std::min(images, u.n - first);
    if (count < images) std::memset(gd, 0, bytes[0]);
    grad_of_dots(b, first, count, gd);
    sign_bits(b, first, count, bits);
    grad_of_weights(u, count, gd, bits, pixels, tables, grad_w);
    if (!b.grad_x) continue;
    if (u.stride == 1) {
      convolve<float, Way::kSame>(gd, u.cout, ho, b.offsets, u.cin, ga, u.h, borders, tables);
    } else {
      convolve<float, Way::kUp>(gd, u.cout, ho, b.offsets, u.cin, ga, u.h, borders, tables);
    }
    grad_of_input(b, first, count, ga);
  }
}

// --- what follows the dots -------------------------------------------------------------------------------------------

void apply(const Maps& m, const std::int16_t* dots, const float* a, const float* b, const float* residual, float lo,
           float hi, float* y, int first, int last) {
  for (int map = first * m.c; map < last * m.c; ++map) {
    const std::size_t at = std::size_t(map) * m.pixels;
    const float scale = a[map % m.c], offset = b[map % m.c];
    const std::int16_t* dot = dots + at;
    float* to = y + at;
    if (residual) {
      const float* r = residual + at;
      for (std::size_t i = 0; i < m.pixels; ++i) {
        const float v = scale * float(dot[i]) + offset + r[i];
        to[i] = v < lo ? lo : v > hi ? hi : v;
      }
    } else {
      for (std::size_t i = 0; i < m.pixels; ++i) {
        const float v = scale * float(dot[i]) + offset;
        to[i] = v < lo ? lo : v > hi ? hi : v;
      }
    }
  }
}

void reduce(const Maps& m, const float* grad_y, const float* y, const std::int16_t* dots, float lo, float hi,
            double* sums, float* g, int first, int last) {
  for (int map = first * m.c; map < last * m.c; ++map) {
    const std::size_t at = std::size_t(map) * m.pixels;
    const float *from = grad_y + at, *v = y ? y + at : nullptr;
    const std::int16_t* dot = dots + at;
    double total = 0, product = 0;
    for (std::size_t start = 0; start < m.pixels; start += 256) {  // floats for so many, then doubles
      const std::size_t end = std::min(m.pixels, start + 256);
      float s[16] = {}, q[16] = {};
      std::size_t i = start;
      for (; i + 16 <= end; i += 16) {
        for (std::size_t k = 0; k < 16; ++k) {
          const float value = v ? inside(from[i + k], v[i + k], lo, hi) : from[i + k];
          if (g) g[at + i + k] = value;
          s[k] += value;
          q[k] += value * float(dot[i + k]);
        }
      }
      for (; i < end; ++i) {
        const float value = v ? inside(from[i], v[i], lo, hi) : from[i];
        if (g) g[at + i] = value;
        s[0] += value;
        q[0] += value * float(dot[i]);
      }
      for (int k = 0; k < 16; ++k) total += s[k], product += q[k];
    }
    sums[2 * map] = total, sums[2 * map + 1] = product;
  }
}

}  // namespace

#define OVSW_QUOTE(name) #name
#define OVSW_TEXT(name) OVSW_QUOTE(name)

extern const Kernels kKernels;
const Kernels kKernels = {OVSW_TEXT(OVSW_ISA), forward_scratch, forward, backward_scratch, backward, apply, reduce};

}  // namespace ovsw::train::OVSW_ISA
