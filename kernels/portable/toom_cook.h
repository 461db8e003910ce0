// A convolution of pixels with 8-bit weights in half the products, exactly.
//
// Four neighbouring outputs of a row and four taps are a product of polynomials: with inputs d0 .. d6 and taps g0 .. g3
// at seven points (0, 1, -1, 2, -2, 1/2 and infinity), seven products take the place of sixteen:
//     360 * y = A' ((G g) * (B d))
// All numbers are integers, and B d of bytes and G g of 8-bit weights fit 16 bits. The products of an output are summed
// before A' is applied, all modulo 2^32. So is the result that is needed, 256 * y: it is 360 * y times 32 / 45, and 45
// has an inverse modulo 2^32.
//
// With a stride of more than one, a window of more than four columns is taken apart into rows of every stride-th
// column. Then stride * channels values, side by side in memory, go through the same matrices: the lanes of a column.
#pragma once

#include "kernels/portable/eight_bits.h"
#include "kernels/portable/vectors.h"

namespace ovsw::OVSW_ISA::portable {

constexpr int kPoints = 7, kTaps = 4;
constexpr int kQuad = 4;        // outputs of a row that are made together
constexpr int kColumnRoom = 8;  // lanes of a column at most

typedef std::int16_t Column __attribute__((vector_size(kColumnRoom * sizeof(std::int16_t))));

inline int column_lanes(const Shape& s) { return s.stride_w * s.in_c; }

// Values of a patch at one point: (window_h, lane).
inline std::int64_t quad_values(const Shape& s) { return std::int64_t(s.window_h) * column_lanes(s); }

inline int row_quads(const Shape& s) { return int(ceil_div(s.out_w, kQuad)); }

// Whether it can be done with fewer instructions: the saving must exceed the cost of the transformations.
inline bool quads_pay(const Shape& s) {
  constexpr int kWays = 16;  // their cost for a pixel, in products
  const std::int64_t values = std::int64_t(s.window_h) * s.window_w * s.in_c;
  return s.window_w <= kTaps * s.stride_w && column_lanes(s) <= kColumnRoom &&
         values - quad_values(s) * kPoints / kQuad >= kWays;
}

// G for the weights of one output channel: put(point, value of the patch, weight).
template <typename Put>
OVSW_INLINE void quad_weights(const Shape& s, const std::int16_t* weights, Put put) {
  constexpr int kG[kPoints][kTaps] = {{90, 0, 0, 0},    {60, 60, 60, 60}, {20, -20, 20, -20}, {5, 10, 20, 40},
                                      {3, -6, 12, -24}, {32, 16, 8, 4},   {0, 0, 0, 180}};
  const int lanes = column_lanes(s), row = s.window_w * s.in_c;
  for (int point = 0; point < kPoints; ++point) {
    for (int ky = 0; ky < s.window_h; ++ky) {
      for (int lane = 0; lane < lanes; ++lane) {
        int sum = 0;
        for (int k = 0; k < kTaps && k * lanes + lane < row; ++k) {
          sum += kG[point][k] * (weights[ky * row + k * lanes + lane] / kUnit);
        }
        put(point, ky * lanes + lane, std::int16_t(sum));
      }
    }
  }
}

// B for a row's quads: row[column][lane] to quads[quad][point][kColumnRoom].
inline void quad_inputs(const std::int16_t* row, int lanes, int quads, std::int16_t* to) {
  for (int q = 0; q < quads; ++q, row += kQuad * lanes, to += kPoints * kColumnRoom) {
    Column d[kPoints];
    for (int i = 0; i < kPoints; ++i) d[i] = get<Column>(row + i * lanes);
    const Column at[kPoints] = {d[0] * 4 - d[1] * 8 - d[2] * 5 + d[3] * 10 + d[4] - d[5] * 2,
                                d[2] * 4 - d[1] * 4 + d[3] * 9 - d[4] - d[5] * 2,
                                d[2] * 12 - d[1] * 4 - d[3] * 7 - d[4] * 3 + d[5] * 2,
                                (d[1] + d[5]) * 2 + (d[4] - d[2]) * 3 - d[3] * 4,
                                (d[1] - d[5]) * 2 + (d[4] - d[2]) * 5,
                                d[1] * 4 - d[3] * 5 + d[5],
                                d[6] * 2 - d[5] - d[4] * 10 + d[3] * 5 + d[2] * 8 - d[1] * 4};
    std::memcpy(to, at, sizeof at);
  }
}

// A and the division: from sums at the points to the sums of kQuad pixels, with weights as they were, in kUnit. Sums
// are vectors of unsigned numbers, which wrap around.
template <typename Sums>
OVSW_INLINE void quad_outputs(const Sums (&m)[kPoints], Sums (&y)[kQuad]) {
  constexpr std::uint32_t kInverse = 0xa4fa4fa5u;  // of 45
  static_assert(kInverse * 45 == 1 && kUnit == 8 * 32);
  const Sums even1 = m[1] + m[2], odd1 = m[1] - m[2], even2 = m[3] + m[4], odd2 = m[3] - m[4];
  y[0] = m[0] + even1 + even2 + m[5] * 8;
  y[1] = odd1 + odd2 * 2 + m[5] * 4;
  y[2] = even1 + even2 * 4 + m[5] * 2;
  y[3] = odd1 + odd2 * 8 + m[5] + m[6];
  for (Sums& sums : y) sums *= kInverse * 32;
}

// The transformed rows of the image under a row of outputs. Each is computed once and kept as long as it is needed.
class QuadRows {
 public:
  static std::size_t bytes(const Shape& s) { return line_bytes(s) + std::size_t(s.window_h) * row_bytes(s); }

  // From output row oy on.
  QuadRows(const Shape& s, const void* in, int oy, void* scratch)
      : s_(s),
        in_(static_cast<const std::uint8_t*>(in)),
        line_(static_cast<std::int16_t*>(scratch)),
        rows_(static_cast<unsigned char*>(scratch) + line_bytes(s)),
        next_(oy * s.stride_h) {
    std::memset(scratch, 0, line_bytes(s));
  }

  // To be called for each row of outputs before its patches.
  void move_to(int oy) {
    const int first = oy * s_.stride_h, last = first + s_.window_h;
    for (next_ = next_ < first ? first : next_; next_ < last; ++next_) {
      const int y = next_ - s_.pad_h;
      auto* to = reinterpret_cast<std::int16_t*>(rows_ + std::size_t(next_ % s_.window_h) * row_bytes(s_));
      if (y < 0 || y >= s_.in_h) {
        std::memset(to, 0, row_bytes(s_));
      } else {
        const int values = s_.in_w * s_.in_c;
        widen(in_ + std::int64_t(y) * values, values, line_ + s_.pad_w * s_.in_c);
        quad_inputs(line_, column_lanes(s_), row_quads(s_), to);
      }
    }
  }

  // The quad's patches at all points, `step` bytes apart. Up to a column is written past the end of each.
  void gather(int oy, int quad, unsigned char* to, std::size_t step) const {
    const std::size_t lanes = std::size_t(column_lanes(s_)) * sizeof(std::int16_t);
    int row = oy * s_.stride_h % s_.window_h;
    for (int ky = 0; ky < s_.window_h; ++ky, to += lanes) {
      const unsigned char* from =
          rows_ + std::size_t(row) * row_bytes(s_) + std::size_t(quad) * kPoints * sizeof(Column);
      for (int i = 0; i < kPoints; ++i)
        std::memcpy(to + std::size_t(i) * step, from + i * sizeof(Column), sizeof(Column));
      row = row + 1 == s_.window_h ? 0 : row + 1;
    }
  }

 private:
  // The last quad may reach beyond the image, and the last column is read whole.
  static std::size_t line_bytes(const Shape& s) {
    const int needed = ((row_quads(s) - 1) * kQuad + kPoints) * column_lanes(s), has = (s.in_w + 2 * s.pad_w) * s.in_c;
    return std::size_t(round_up((needed < has ? has : needed) + kColumnRoom, 32)) * sizeof(std::int16_t);
  }
  static std::size_t row_bytes(const Shape& s) { return std::size_t(row_quads(s)) * kPoints * sizeof(Column); }

  static void widen(const std::uint8_t* from, int n, std::int16_t* to) {
    typedef std::uint8_t Bytes __attribute__((vector_size(16)));
    typedef std::int16_t Words __attribute__((vector_size(32)));
    int i = 0;
    for (; i + 16 <= n; i += 16) {
      const Words words = __builtin_convertvector(get<Bytes>(from + i), Words);
      std::memcpy(to + i, &words, sizeof words);
    }
    for (; i < n; ++i) to[i] = from[i];
  }

  const Shape s_;
  const std::uint8_t* const in_;
  std::int16_t* const line_;
  unsigned char* const rows_;
  int next_;
};

// The quads of output pixels [begin, end), up to N at a time: strips of pixels that follow each other.
template <int N>
class QuadStrips {
 public:
  QuadStrips(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch)
      : args_(args),
        end_(end),
        y_(int(begin / args.shape.out_w)),
        x_(int(begin % args.shape.out_w)),
        rows_(args.shape, args.in.data, y_, scratch),
        first(begin) {}

  // Gathers the next quads' patches, each `patch` bytes after the one before and its points `step` bytes apart.
  bool next(unsigned char* to, std::size_t patch, std::size_t step) {
    const Shape& s = args_.shape;
    first += pixels;
    pixels = 0;
    starts[0] = -(x_ % kQuad);
    for (quads = 0; quads < N && first + pixels < end_; ++quads, to += patch) {
      rows_.move_to(y_);
      rows_.gather(y_, x_ / kQuad, to, step);
      do {
        const int border = args_.border.row_class[y_] + args_.border.col_class[x_];
        base[pixels++] = args_.border.base + std::int64_t(border) * padded_channels(s.out_c);
      } while (++x_ % kQuad != 0 && x_ < s.out_w && first + pixels < end_);
      starts[quads + 1] = pixels;
      if (x_ == s.out_w) {
        x_ = 0;
        ++y_;
      }
    }
    return quads > 0;
  }

 private:
  const KernelArgs& args_;
  const std::int64_t end_;
  int y_, x_;
  QuadRows rows_;

 public:
  std::int64_t first;  // pixel of the strip
  int quads = 0, pixels = 0;
  int starts[N + 1];                    // of each quad's outputs among the pixels; the very first may start before them
  const std::int32_t* base[N * kQuad];  // of each pixel, channel 0
};

}  // namespace ovsw::OVSW_ISA::portable
