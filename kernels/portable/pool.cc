// Kernels without weights: pooling, channel padding, and the epilogue alone. Each computes one pixel's channels in
// scratch.

#include "kernels/portable/epilogue.h"
#include "kernels/portable/kernels.h"
#include "kernels/portable/scaling.h"
#include "kernels/portable/window.h"

namespace ovsw::OVSW_ISA::portable {
namespace {

// Row and column of consecutive output pixels, without a division for each.
struct Place {
  int width, y, x;

  Place(const Shape& s, std::int64_t pixel) : width(s.out_w), y(int(pixel / s.out_w)), x(int(pixel % s.out_w)) {}
  OVSW_INLINE void next() {
    if (++x == width) {
      x = 0;
      ++y;
    }
  }
};

// A window over a map of T: its first pixel, and how far it is to the next row and column.
template <typename T>
struct Taps {
  const T* first;
  int rows, columns;
  std::int64_t row, column;

  OVSW_INLINE Taps(const KernelArgs& args, const Window& w) : rows(w.rows), columns(w.columns) {
    const Shape& s = args.shape;
    column = s.in_c;
    row = column * s.in_w;
    first = static_cast<const T*>(args.in.data) + w.y * row + w.x * column;
  }

  // fn(the pixel of each tap), from channel c on
  template <typename Fn>
  OVSW_INLINE void each(int c, Fn fn) const {
    const T* in = first + c;
    for (int y = 0; y < rows; ++y, in += row) {
      const T* x = in;
      for (int i = 0; i < columns; ++i, x += column) fn(x);
    }
  }
};

// The maximum of N vectors of channels from c on. N registers, each started with the first tap.
template <int N, typename T>
OVSW_INLINE void window_max(const Taps<T>& taps, int c, T* to) {
  using Vector = typename VectorOf<T>::Type;
  Vector most[N];
  std::memcpy(most, taps.first + c, sizeof most);
  taps.each(c, [&](const T* x) OVSW_INLINE_LAMBDA {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      const auto next = get<Vector>(x + v * VectorOf<T>::kLanes);
      most[v] = next > most[v] ? next : most[v];
    }
  });
  std::memcpy(to + c, most, sizeof most);
}

// The sums of N half vectors, computed in the same way.
template <int N>
OVSW_INLINE void window_sum(const Taps<std::int16_t>& taps, int c, void* to) {
  Wide sum[N] = {};
  taps.each(c, [&](const std::int16_t* x) OVSW_INLINE_LAMBDA {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      sum[v] += __builtin_convertvector(get<Half>(x + v * int(sizeof(Half) / sizeof *x)), Wide);
    }
  });
  std::memcpy(to, sum, sizeof sum);
}

// Inlined for 16 bits, where a network may spend a tenth of its time here.
template <Numerics N, typename Acc>
OVSW_INLINE void finish(const Epilogue<N>& epilogue, const Acc* acc, std::int64_t pixel, int channels) {
  if constexpr (sizeof(Acc) == sizeof(std::int16_t)) {
    finish_pixel(epilogue, acc, pixel, 0, channels);
  } else {
    finish_pixel_call(epilogue, acc, pixel, 0, channels);
  }
}

template <Numerics N, bool Dilated, typename T>
OVSW_INLINE void run_maxpool(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  constexpr int kLanes = VectorOf<T>::kLanes;
  const Shape& s = args.shape;
  const Epilogue<N> epilogue(args);
  const int channels = s.out_c;
  auto* most = static_cast<T*>(scratch);
  Place at(s, begin);
  for (std::int64_t pixel = begin; pixel < end; ++pixel, at.next()) {
    const int oy = at.y, ox = at.x;
    Taps<T> taps(args, Dilated ? dilated_window(s, oy, ox) : window(s, oy, ox));
    if constexpr (Dilated) {
      taps.row *= s.gap_h + 1;
      taps.column *= s.gap_w + 1;
    }
    int c = 0;
    for (; c + 4 * kLanes <= channels; c += 4 * kLanes) window_max<4>(taps, c, most);
    for (; c + kLanes <= channels; c += kLanes) window_max<1>(taps, c, most);
    for (; c < channels; ++c) {
      most[c] = taps.first[c];
      taps.each(c, [&](const T* x) OVSW_INLINE_LAMBDA { most[c] = *x > most[c] ? *x : most[c]; });
    }
    finish<N>(epilogue, most, pixel, channels);
  }
}

template <Numerics N, typename T>
OVSW_INLINE void run_eltwise(const KernelArgs& args, std::int64_t begin, std::int64_t end) {
  const Epilogue<N> epilogue(args);
  const auto* in = static_cast<const T*>(args.in.data);
  const int channels = args.shape.out_c;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    finish<N>(epilogue, in + pixel * channels, pixel, channels);
  }
}

// The divisor of the sum over a window.
class Divisor {
 public:
  explicit Divisor(const KernelArgs& args)
      : shape_(args.shape),
        exclude_pad_(args.exclude_pad),
        most_(std::int64_t(args.shape.window_h) * args.shape.window_w) {
    const Shape& s = args.shape;
    // It is always the same if every window lies inside the map, or inside the padded map if padding counts.
    const int pad_h = exclude_pad_ ? 0 : s.pad_h, pad_w = exclude_pad_ ? 0 : s.pad_w;
    const bool starts = !exclude_pad_ || (s.pad_h == 0 && s.pad_w == 0);
    const int bottom = (s.out_h - 1) * s.stride_h - s.pad_h + s.window_h;
    const int right = (s.out_w - 1) * s.stride_w - s.pad_w + s.window_w;
    always_ = starts && bottom <= s.in_h + pad_h && right <= s.in_w + pad_w;
  }

  std::int64_t most() const { return most_; }
  bool whole() const { return always_; }

  OVSW_INLINE std::int64_t of(int oy, int ox, const Window& w) const {
    if (always_) return most_;
    if (exclude_pad_) return std::int64_t(w.rows) * w.columns;
    const Shape& s = shape_;
    const auto taps = [](int start, int in, int pad, int size) -> std::int64_t {
      return in + pad - start < size ? in + pad - start : size;
    };
    return taps(oy * s.stride_h - s.pad_h, s.in_h, s.pad_h, s.window_h) *
           taps(ox * s.stride_w - s.pad_w, s.in_w, s.pad_w, s.window_w);
  }

 private:
  const Shape& shape_;
  bool exclude_pad_;
  std::int64_t most_;
  bool always_;
};

}  // namespace

// Sums, and three constants of average pooling, per channel.
std::size_t Weightless::scratch_bytes(const Shape& s) {
  return padded(s.out_c) * sizeof(std::int32_t) + Scaling::bytes(s.out_c);
}

template <Numerics N>
void Maxpool<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  with_input<N>(args, [&](auto x) OVSW_INLINE_LAMBDA {
    if (dilated(args.shape)) {
      run_maxpool<N, true, decltype(x)>(args, begin, end, scratch);
    } else {
      run_maxpool<N, false, decltype(x)>(args, begin, end, scratch);
    }
  });
}

// The mean, summed in double: exact for any sensible map.
template <>
void Avgpool<Numerics::kFloat>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<Numerics::kFloat> epilogue(args);
  const Divisor divisor(args);
  auto* acc = static_cast<double*>(scratch);
  Place at(s, begin);
  for (std::int64_t pixel = begin; pixel < end; ++pixel, at.next()) {
    const int oy = at.y, ox = at.x;
    const Window w = window(s, oy, ox);
    std::memset(acc, 0, std::size_t(s.out_c) * sizeof(double));
    Taps<float>(args, w).each(0, [&](const float* x) OVSW_INLINE_LAMBDA {
      for (int c = 0; c < s.in_c; ++c) acc[c] += double(x[c]);
    });
    const auto count = double(divisor.of(oy, ox, w));
    for (int c = 0; c < s.out_c; ++c) acc[c] /= count;
    finish_pixel_call(epilogue, acc, pixel, 0, s.out_c);
  }
}

namespace {

// The mean of an i32, in 64 bits. Not inlined, so that the other kind keeps its registers.
__attribute__((noinline)) void average_wide(const KernelArgs& args, std::int64_t begin, std::int64_t end,
                                            void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<Numerics::kInteger> epilogue(args);
  const Divisor divisor(args);
  const auto* scale = args.constant<std::int16_t>(kScale);
  const auto* shift = args.constant<std::int32_t>(kShift);
  const std::int32_t* base = args.border.base;
  auto* sum = static_cast<std::int64_t*>(scratch);
  auto* q = reinterpret_cast<std::int32_t*>(sum + padded(s.out_c));
  Place at(s, begin);
  for (std::int64_t pixel = begin; pixel < end; ++pixel, at.next()) {
    const Window w = window(s, at.y, at.x);
    std::memset(sum, 0, std::size_t(s.out_c) * sizeof *sum);
    Taps<std::int32_t>(args, w).each(0, [&](const std::int32_t* x) OVSW_INLINE_LAMBDA {
      for (int c = 0; c < s.in_c; ++c) sum[c] += x[c];
    });
    const std::int64_t n = divisor.of(at.y, at.x, w), most = divisor.most();
    if (n != most) {  // floor(sum * most / n + 1/2); 2 * sum * most alone may take 65 bits
      for (int c = 0; c < s.in_c; ++c) {
        const std::int64_t whole = sum[c] / n - (sum[c] % n < 0), rest = sum[c] - whole * n;
        sum[c] = whole * most + (2 * rest * most + n) / (2 * n);
      }
    }
    for (int c = 0; c < s.out_c; ++c) q[c] = std::int32_t((scale[c] * sum[c] + kOffsetUnit * base[c]) >> shift[c]);
    finish_pixel_call(epilogue, q, pixel, 0, s.out_c);
  }
}

}  // namespace

template <>
void Avgpool<Numerics::kInteger>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  if (args.in.kind == Element::kI32) return average_wide(args, begin, end, scratch);
  const Shape& s = args.shape;
  const Epilogue<Numerics::kInteger> epilogue(args);
  const Divisor divisor(args);
  auto* sum = static_cast<std::int32_t*>(scratch);
  std::memset(sum, 0, padded(s.out_c) * sizeof *sum);
  const Scaling scaling(args, divisor.most() * 32768 + 1, sum + padded(s.out_c));
  constexpr int kLanes = kVector / int(sizeof(std::int32_t));
  Place at(s, begin);
  if (epilogue.only_clamps() && scaling.narrow() && divisor.whole() && s.out_c % kLanes == 0) {
    for (std::int64_t pixel = begin; pixel < end; ++pixel, at.next()) {
      const Taps<std::int16_t> taps(args, window(s, at.y, at.x));
      for (int c = 0; c < s.out_c; c += kLanes) {
        Wide whole;
        window_sum<1>(taps, c, &whole);
        epilogue.put(scaling.of(whole, std::size_t(c)), pixel * s.out_c + c);
      }
    }
    return;
  }

  for (std::int64_t pixel = begin; pixel < end; ++pixel, at.next()) {
    const int oy = at.y, ox = at.x;
    const Window w = window(s, oy, ox);
    const Taps<std::int16_t> taps(args, w);
    int c = 0;
    for (; c + 4 * kLanes <= s.in_c; c += 4 * kLanes) window_sum<4>(taps, c, sum + c);
    for (; c + kLanes <= s.in_c; c += kLanes) window_sum<1>(taps, c, sum + c);
    for (; c < s.in_c; ++c) {
      sum[c] = 0;
      taps.each(c, [&](const std::int16_t* x) OVSW_INLINE_LAMBDA { sum[c] += *x; });
    }
    const std::int64_t n = divisor.of(oy, ox, w), most = divisor.most();
    if (n != most) {  // as if the window were whole: floor(sum * most / n + 1/2)
      for (int i = 0; i < s.in_c; ++i) {
        const std::int64_t twice = 2 * most * sum[i] + n;
        sum[i] = std::int32_t(twice / (2 * n) - (twice % (2 * n) < 0));
      }
    }
    scaling.apply(sum);
    finish_pixel(epilogue, sum, pixel, 0, s.out_c);
  }
}

namespace {

template <Numerics N, typename T>
OVSW_INLINE void run_channel_pad(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Shape& s = args.shape;
  const Epilogue<N> epilogue(args);
  const auto* in = static_cast<const T*>(args.in.data);
  if constexpr (N == Numerics::kInteger) {
    typedef T Few __attribute__((vector_size(16)));
    constexpr int kFew = sizeof(Few) / sizeof(T);
    const int first = args.channel_shift, last = first + s.in_c;
    if (epilogue.only_clamps() && first % kFew == 0 && s.in_c % kFew == 0 && s.out_c % kFew == 0) {
      in += begin * s.in_c;
      for (std::int64_t pixel = begin; pixel < end; ++pixel, in += s.in_c) {
        const std::int64_t at = pixel * s.out_c;
        for (int c = 0; c < first; c += kFew) epilogue.put(Few{}, at + c);
        for (int c = first; c < last; c += kFew) epilogue.put(get<Few>(in + c - first), at + c);
        for (int c = last; c < s.out_c; c += kFew) epilogue.put(Few{}, at + c);
      }
      return;
    }
  }
  auto* wide = static_cast<T*>(scratch);
  std::memset(wide, 0, std::size_t(s.out_c) * sizeof(T));
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    std::memcpy(wide + args.channel_shift, in + pixel * s.in_c, std::size_t(s.in_c) * sizeof(T));
    finish<N>(epilogue, wide, pixel, s.out_c);
  }
}

}  // namespace

template <Numerics N>
void ChannelPad<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  with_input<N>(args, [&](auto x) OVSW_INLINE_LAMBDA { run_channel_pad<N, decltype(x)>(args, begin, end, scratch); });
}

template <Numerics N>
void Eltwise<N>::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void*) {
  with_input<N>(args, [&](auto x) OVSW_INLINE_LAMBDA { run_eltwise<N, decltype(x)>(args, begin, end); });
}

void Round::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  const Epilogue<Numerics::kFloat> epilogue(args);
  const int channels = args.shape.out_c;
  const float* in = static_cast<const float*>(args.in.data) + begin * channels;
  auto* whole = static_cast<float*>(scratch);
  for (std::int64_t pixel = begin; pixel < end; ++pixel, in += channels) {
    for (int c = 0; c < channels; ++c) whole[c] = __builtin_rintf(in[c]);  // halves to even
    finish<Numerics::kFloat>(epilogue, whole, pixel, channels);
  }
}

template struct Maxpool<Numerics::kFloat>;
template struct Maxpool<Numerics::kInteger>;
template struct ChannelPad<Numerics::kFloat>;
template struct ChannelPad<Numerics::kInteger>;
template struct Eltwise<Numerics::kFloat>;
template struct Eltwise<Numerics::kInteger>;

}  // namespace ovsw::OVSW_ISA::portable
