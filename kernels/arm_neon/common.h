// Shared by the ARM kernels: the tile, loops that the compiler unrolls before it assigns registers, memory accesses
// that advance a pointer, and padded rows of the input.
//
// All of them compute tiles of up to kTile output pixels by kPanel output channels. The input under one tile is first
// gathered into patches, interleaved by pixel, [16 bytes of the patch][pixel]; this costs about 1 % of the products and
// makes the inner loop one pass through memory, whatever the window, stride and padding.
#pragma once

#include <arm_neon.h>

#include "kernels/arm_neon/kernels.h"

namespace ovsw::OVSW_ISA::neon {

constexpr int kTile = 8;
constexpr int kPanel = 8;
constexpr int kVector = 16;  // bytes

// fn(0) to fn(N - 1), with constant arguments after inlining: arrays indexed by them live in registers.
template <int N>
struct Unroll {
  template <typename Fn>
  static OVSW_INLINE void run(Fn fn) {
    Unroll<N - 1>::run(fn);
    fn(N - 1);
  }
};
template <>
struct Unroll<0> {
  template <typename Fn>
  static OVSW_INLINE void run(Fn) {}
};

// Loads and stores that advance their pointer by a register or a constant; compilers do not generate them.
OVSW_INLINE void load_step(int32x4_t& a, int32x4_t& b, const std::int32_t*& p) {
  __asm__ volatile("ldp %q0, %q1, [%2], #32" : "=w"(a), "=w"(b), "+r"(p) : : "memory");
}
OVSW_INLINE int16x8_t load_step(const std::int16_t*& p, std::int64_t bytes) {
  int16x8_t v;
  __asm__ volatile("ld1 {%0.8h}, [%1], %2" : "=w"(v), "+r"(p) : "r"(bytes) : "memory");
  return v;
}
OVSW_INLINE uint8x16_t load_step(const std::uint8_t*& p, std::int64_t bytes) {
  uint8x16_t v;
  __asm__ volatile("ld1 {%0.16b}, [%1], %2" : "=w"(v), "+r"(p) : "r"(bytes) : "memory");
  return v;
}
OVSW_INLINE uint8x16_t load_step(const std::uint8_t*& p) {
  uint8x16_t v;
  __asm__ volatile("ldr %q0, [%1], #16" : "=w"(v), "+r"(p) : : "memory");
  return v;
}
OVSW_INLINE void store_step(std::int16_t*& p, int16x8_t v, std::int64_t bytes) {
  __asm__ volatile("st1 {%1.8h}, [%0], %2" : "+r"(p) : "w"(v), "r"(bytes) : "memory");
}
OVSW_INLINE void store_step(std::uint8_t*& p, uint8x16_t v, std::int64_t bytes) {
  __asm__ volatile("st1 {%1.16b}, [%0], %2" : "+r"(p) : "w"(v), "r"(bytes) : "memory");
}
OVSW_INLINE void store_step(std::uint8_t*& p, uint8x16_t a, uint8x16_t b) {
  __asm__ volatile("stp %q1, %q2, [%0], #32" : "+r"(p) : "w"(a), "w"(b) : "memory");
}
OVSW_INLINE void store_pair(std::int32_t* p, int32x4_t a, int32x4_t b) {
  __asm__ volatile("stp %q1, %q2, [%0]" : : "r"(p), "w"(a), "w"(b) : "memory");
}
// The sum of all, in the lowest byte; the intrinsic would move it to another register.
OVSW_INLINE uint8x16_t add_across(uint16x8_t v) {
  uint8x16_t sum;
  __asm__("addv %h0, %1.8h" : "=w"(sum) : "w"(v));
  return sum;
}
template <int kLane>
OVSW_INLINE void store_byte_step(std::uint8_t*& p, uint8x16_t v, std::int64_t bytes) {
  __asm__ volatile("st1 {%1.b}[%3], [%0], %2" : "+r"(p) : "w"(v), "r"(bytes), "i"(kLane) : "memory");
}

// The rows of the input under one row of output pixels, with zeros on the left and right where the windows leave the
// image, and zeros for rows outside. window_h rows are kept in a ring, so each row of the image is copied once.
// Convert::row(from, to, columns) copies columns, of from_bytes and to_bytes each; if it changes nothing and there is
// no padding, rows are read where they are.
struct RowShape {
  std::size_t from_bytes, to_bytes;  // per column
  std::size_t stride;                // bytes between rows in the ring
  bool in_place;
};

static inline RowShape row_shape(const Shape& s, std::size_t from_bytes, std::size_t to_bytes, bool converts) {
  const std::size_t columns = std::size_t(s.out_w - 1) * s.stride_w + s.window_w;
  return {from_bytes, to_bytes, std::size_t(round_up(columns * to_bytes + 64, 64)), !converts && s.pad_w == 0};
}

static inline std::size_t row_scratch_bytes(const Shape& s, const RowShape& r) {
  const std::size_t rows = r.in_place ? 1 : std::size_t(s.window_h) + 1;
  const std::size_t tables = std::size_t(s.window_h) * (sizeof(std::uint8_t*) + sizeof(int));
  return rows * r.stride + round_up(tables, 64);
}

template <typename Convert>
class Rows {
 public:
  Rows(const Shape& s, const RowShape& r, const void* in, std::uint8_t* scratch) : s_(s), r_(r) {
    in_ = static_cast<const std::uint8_t*>(in);
    zero_ = scratch;
    ring_ = zero_ + r.stride;
    const std::size_t rows = r.in_place ? 1 : std::size_t(s.window_h) + 1;
    std::memset(scratch, 0, rows * r.stride);
    row_ = reinterpret_cast<const std::uint8_t**>(scratch + rows * r.stride);
    held_ = reinterpret_cast<int*>(row_ + s.window_h);
    for (int k = 0; k < s.window_h; ++k) held_[k] = -1;
    const std::int64_t columns = std::int64_t(s.out_w - 1) * s.stride_w + s.window_w - s.pad_w;
    columns_ = columns > s.in_w ? s.in_w : columns < 0 ? 0 : int(columns);
  }

  void move_to(int oy) {
    for (int k = 0; k < s_.window_h; ++k) {
      const int y = oy * s_.stride_h - s_.pad_h + k;
      if (y < 0 || y >= s_.in_h) {
        row_[k] = zero_;
        continue;
      }
      const std::uint8_t* from = in_ + std::size_t(y) * s_.in_w * r_.from_bytes;
      if (r_.in_place) {
        row_[k] = from;
        continue;
      }
      const int slot = y % s_.window_h;
      std::uint8_t* to = ring_ + std::size_t(slot) * r_.stride;
      row_[k] = to;
      if (held_[slot] == y) continue;
      held_[slot] = y;
      Convert::row(from, to + std::size_t(s_.pad_w) * r_.to_bytes, columns_, r_);
    }
  }

  // One per row of the kernel, from the column under output pixel 0 on.
  const std::uint8_t* const* rows() const { return row_; }

 private:
  const Shape& s_;
  RowShape r_;
  const std::uint8_t* in_;
  std::uint8_t *zero_, *ring_;
  const std::uint8_t** row_;
  int* held_;  // which row of the image is in a slot
  int columns_;
};

// The output pixels of [begin, end) one after the other, with the rows under them and the base of their border class,
// from the first channel on.
template <typename Convert>
class Walk {
 public:
  Walk(const KernelArgs& a, const RowShape& r, std::int64_t begin, std::uint8_t* scratch)
      : a_(a), rows_(a.shape, r, a.in.data, scratch), stride_(padded_channels(a.shape.out_c)) {
    y_ = int(begin / a.shape.out_w);
    x_ = int(begin % a.shape.out_w);
    move_to_row();
  }

  // The next `pixels` pixels, in runs that lie in one row: fn(rows of the input, output column, first of the run, how
  // many). base receives the base of each.
  template <typename Fn>
  OVSW_INLINE void next(int pixels, const std::int32_t** base, Fn fn) {
    for (int p = 0; p < pixels;) {
      if (x_ == a_.shape.out_w) {
        x_ = 0;
        ++y_;
        move_to_row();
      }
      const int left = a_.shape.out_w - x_, run = pixels - p < left ? pixels - p : left;
      for (int i = 0; i < run; ++i) base[p + i] = base_ + std::int64_t(a_.border.col_class[x_ + i]) * stride_;
      fn(rows_.rows(), x_, p, run);
      x_ += run;
      p += run;
    }
  }

 private:
  void move_to_row() {
    rows_.move_to(y_);
    base_ = a_.border.base + std::int64_t(a_.border.row_class[y_]) * stride_ + a_.first_channel;
  }

  const KernelArgs& a_;
  Rows<Convert> rows_;
  const std::int64_t stride_;
  int y_, x_;
  const std::int32_t* base_;
};

// fn(first pixel, pixels) for [begin, end) in tiles of nearly equal size, at most kTile: a last tile of one pixel would
// cost half as much as a full one.
template <typename Fn>
OVSW_INLINE void for_tiles(std::int64_t begin, std::int64_t end, Fn fn) {
  std::int64_t tiles = (end - begin + kTile - 1) / kTile;
  while (begin < end) {
    const int pixels = int((end - begin + tiles - 1) / tiles);
    fn(begin, pixels);
    begin += pixels;
    --tiles;
  }
}

}  // namespace ovsw::OVSW_ISA::neon
