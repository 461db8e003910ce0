// Elementwise work before and after the convolutions: signs and moments of the input, scale, residual and activation of
// the output, forward and backward.
#pragma once

#include "kernels/train/lanes.h"

namespace ovsw::train::OVSW_ISA {
namespace {

// Appends bits to an array of words.
class BitWriter {
 public:
  explicit BitWriter(std::uint32_t* to) : to_(to) {}

  void push(std::uint32_t bits, int count) {
    pending_ |= std::uint64_t(bits) << filled_;
    filled_ += count;
    if (filled_ < 32) return;
    *to_++ = std::uint32_t(pending_);
    pending_ >>= 32, filled_ -= 32;
  }

  void end(const std::uint32_t* last) {
    for (; to_ < last; pending_ = 0) *to_++ = std::uint32_t(pending_);
  }

 private:
  std::uint32_t* to_;
  std::uint64_t pending_ = 0;
  int filled_ = 0;
};

void measure(const Unit& u, const Input& in, int first, int last) {
  const int runs = in.shift ? u.cin : 1;
  const std::size_t count = u.in_size() / std::size_t(runs);
  for (int image = first; image < last; ++image) {
    const float* x = in.x + std::size_t(image) * u.in_size();
    std::uint32_t* words = in.bits + std::size_t(image) * u.words();
    BitWriter bits(words);
    std::int64_t zeros = 0;
    double sums[2] = {};
    for (int run = 0; run < runs; ++run, x += count) {
      const float shift = in.shift ? in.shift[run] : 0.0f;
      double totals[2];
      add_up<2>(count, totals, [&](auto lanes, std::size_t i, auto& out) {
        constexpr int n = decltype(lanes)::value;
        auto v = get<n>(x + i);
        if (in.shift) v += shift;
        std::uint32_t not_negative, zero;
        sign_bits<n>(v, &not_negative, &zero);
        bits.push(not_negative, n);
        zeros += __builtin_popcount(zero);
        out[0] = v, out[1] = v * v;
      });
      sums[0] += totals[0], sums[1] += totals[1];
    }
    bits.end(words + u.words());
    in.zeros[image] = zeros;
    if (in.moments) in.moments[2 * image] = sums[0], in.moments[2 * image + 1] = sums[1];
  }
}

void two_valued(const Maps& m, const TwoValued& t, int first, int last) {
  for (int map = first * m.c; map < last * m.c; ++map) {
    const std::size_t at = std::size_t(map) * m.pixels, channel = std::size_t(map % m.c);
    const std::int16_t *dots = m.dots + at, *windows = t.windows + std::size_t(map / m.c) * m.pixels;
    const float ratio = t.ratio[channel], *border = t.border + channel * m.pixels;
    double sums[2];
    add_up<2>(m.pixels, sums, [&](auto lanes, std::size_t i, auto& out) {
      constexpr int n = decltype(lanes)::value;
      const auto z = to_float<n>(get<n>(dots + i)) + ratio * to_float<n>(get<n>(windows + i)) + get<n>(border + i);
      put(t.z + at + i, z);
      out[0] = z, out[1] = z * z;
    });
    t.sums[2 * map] = sums[0], t.sums[2 * map + 1] = sums[1];
  }
}

void sums(const Maps& m, double* to, int first, int last) {
  for (int map = first * m.c; map < last * m.c; ++map) {
    const float* z = m.z + std::size_t(map) * m.pixels;
    double totals[2];
    add_up<2>(m.pixels, totals, [&](auto lanes, std::size_t i, auto& out) {
      const auto v = get<decltype(lanes)::value>(z + i);
      out[0] = v, out[1] = v * v;
    });
    to[2 * map] = totals[0], to[2 * map + 1] = totals[1];
  }
}

// fn(map, pointer to its dots or z). The type is chosen here, outside all loops.
template <typename Fn>
void for_maps(const Maps& m, int first, int last, Fn&& fn) {
  for (int map = first * m.c; map < last * m.c; ++map) {
    if (m.dots) {
      fn(map, m.dots + std::size_t(map) * m.pixels);
    } else {
      fn(map, m.z + std::size_t(map) * m.pixels);
    }
  }
}

// One channel of `Apply`: v, and its activation.
template <bool kResidual, bool kSlopes>
struct Channel {
  float scale, offset, lo, hi, before, above, below, after;
  const float* residual;

  Channel(const Apply& f, int map)
      : scale(f.a[map % f.maps.c]), offset(f.b[map % f.maps.c]), lo(f.act.lo), hi(f.act.hi) {
    if (kResidual) residual = f.residual + std::size_t(map) * f.maps.pixels;
    if (kSlopes) {
      const int c = map % f.maps.c;
      before = f.act.before[c], above = f.act.above[c], below = f.act.below[c], after = f.act.after[c];
    }
  }

  template <int n, typename D>
  Vector<float, n> sum(const D* z, std::size_t i) const {
    const auto v = scale * to_float<n>(get<n>(z + i)) + offset;
    if constexpr (kResidual) return v + get<n>(residual + i);
    return v;
  }

  template <int n, typename D>
  Vector<float, n> value(const D* z, std::size_t i) const {
    auto v = sum<n>(z, i);
    if constexpr (kSlopes) {
      v += before;
      return (v > 0 ? all_of<decltype(v)>(above) : all_of<decltype(v)>(below)) * v + after;
    } else {
      v = v < lo ? all_of<decltype(v)>(lo) : v;
      return v > hi ? all_of<decltype(v)>(hi) : v;
    }
  }
};

// fn(a null pointer to the Channel type that fits).
template <typename Fn>
void with_channel(const Apply& f, Fn&& fn) {
  if (f.residual) {
    f.act.before ? fn((Channel<true, true>*)nullptr) : fn((Channel<true, false>*)nullptr);
  } else {
    f.act.before ? fn((Channel<false, true>*)nullptr) : fn((Channel<false, false>*)nullptr);
  }
}

void apply(const Apply& f, float* y, int first, int last) {
  with_channel(f, [&](auto* tag) {
    for_maps(f.maps, first, last, [&](int map, const auto* z) {
      const std::remove_pointer_t<decltype(tag)> channel(f, map);
      float* to = y + std::size_t(map) * f.maps.pixels;
      in_spans(int(f.maps.pixels), [&](auto lanes, int i) {
        put(to + i, channel.template value<decltype(lanes)::value>(z, std::size_t(i)));
      });
    });
  });
}

// g inside the clamp, 0 outside; where y is NaN, g.
template <typename V>
inline V inside(V g, V y, float lo, float hi) {
  return (y <= lo) | (y >= hi) ? V{} : g;
}

void reduce(const Reduce& r, int first, int last) {
  const Apply& f = r.forward;
  with_channel(f, [&](auto* tag) {
    using Kind = std::remove_pointer_t<decltype(tag)>;
    constexpr bool slopes = std::is_same_v<Kind, Channel<true, true>> || std::is_same_v<Kind, Channel<false, true>>;
    for_maps(f.maps, first, last, [&](int map, const auto* z) {
      const std::size_t at = std::size_t(map) * f.maps.pixels;
      const float *grad_y = r.grad_y + at, *y = r.y ? r.y + at : nullptr;
      double* sums = r.sums + kSums * map;
      if constexpr (slopes) {
        const Kind channel(f, map);
        double totals[kSums];
        add_up<kSums>(f.maps.pixels, totals, [&](auto lanes, std::size_t i, auto& out) {
          constexpr int n = decltype(lanes)::value;
          const auto grad = get<n>(grad_y + i);
          const auto t = channel.template sum<n>(z, i) + channel.before, product = grad * t;
          const std::decay_t<decltype(t)> none = {};
          const auto g = grad * (t > 0 ? all_of<decltype(t)>(channel.above) : all_of<decltype(t)>(channel.below));
          put(r.g + at + i, g);
          out[0] = g, out[1] = g * to_float<n>(get<n>(z + i)), out[2] = grad;
          out[3] = t > 0 ? product : none, out[4] = t > 0 ? none : product;
        });
        std::copy(totals, totals + kSums, sums);
      } else {
        double totals[2];
        add_up<2>(f.maps.pixels, totals, [&](auto lanes, std::size_t i, auto& out) {
          constexpr int n = decltype(lanes)::value;
          auto g = get<n>(grad_y + i);
          if (y) {
            g = inside(g, get<n>(y + i), f.act.lo, f.act.hi);
            put(r.g + at + i, g);
          }
          out[0] = g, out[1] = g * to_float<n>(get<n>(z + i));
        });
        std::copy(totals, totals + 2, sums);
      }
    });
  });
}

// One channel of the gradient of z: `rows` rows of `width` numbers, `pitch` apart in the input and `step` in the
// result.
template <typename D>
inline void grad_rows(const GradOfZ& b, int c, const float* g, const D* z, int rows, int width, int pitch, float* to,
                      int step) {
  const float scale = b.scale[c];
  if (!b.slope) {
    for (int y = 0; y < rows; ++y, to += step, g += pitch) {
      in_spans(width, [&](auto lanes, int x) { put(to + x, scale * get<decltype(lanes)::value>(g + x)); });
    }
    return;
  }
  const float slope = b.slope[c], offset = b.offset[c];
  for (int y = 0; y < rows; ++y, to += step, g += pitch, z += pitch) {
    in_spans(width, [&](auto lanes, int x) {
      constexpr int n = decltype(lanes)::value;
      put(to + x, scale * get<n>(g + x) + slope * to_float<n>(get<n>(z + x)) + offset);
    });
  }
}

void grad_of_maps(const GradOfZ& b, float* grad, int first, int last) {
  const int pixels = int(b.maps.pixels);
  for_maps(b.maps, first, last, [&](int map, const auto* z) {
    const std::size_t at = std::size_t(map) * b.maps.pixels;
    grad_rows(b, map % b.maps.c, b.g + at, z, 1, pixels, pixels, grad + at, pixels);
  });
}

}  // namespace
}  // namespace ovsw::train::OVSW_ISA
