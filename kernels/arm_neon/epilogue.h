// The second half of every op for one tile, in steps: shift, residual, clamp or step, slopes, store, binarize. Kernels
// only pass their sums. Step, slopes and thresholds, which many networks do not have, cost those one branch together.
//
// q + residual is computed in 32 bits and only then saturated to 16: q alone may overflow 16 bits although the sum does
// not. lo and hi are 16-bit numbers, so saturating before the clamp loses nothing.
//
// Wide ops, which few networks have, take a call per panel that all tiles share.
#pragma once

#include "kernels/arm_neon/common.h"
#include "kernels/portable/epilogue.h"

namespace ovsw::OVSW_ISA::neon {

// The state of one tile as it goes through the panels, and what all tiles of a call share.
struct Tile {
  alignas(16) std::int16_t least[8], most[8];  // lo and hi; of a step all that 16 bits hold
  alignas(16) std::uint8_t bit[16];            // of each channel of a panel, twice
  const KernelArgs* args;
  std::int64_t channels, row_bytes, bit_bytes;  // of one pixel's output
  std::int64_t pixel;                           // the first
  const std::int16_t* residual;                 // of the first pixel, as are out and bits
  const std::int32_t* residual32;
  std::int16_t* out;
  std::int32_t* out32;  // null also if more than q is wanted
  bool wide;
  bool stream;  // the op is wide, adds an i32 and stores the sum as it is or after slopes, as most wide ops do
  std::int32_t* wide_out;
  std::uint8_t* wide_bits;
  std::uint8_t* bits;               // null also if there are thresholds
  std::uint8_t* first_bits;         // the map's, from the first channel on; null if bits is
  bool more;                        // than a clamp and bits = (v >= 0)
  const std::int32_t* base[kTile];  // of each pixel, channel 0
  const std::uint8_t* patches;
  const std::uint8_t* weights;
  const std::uint8_t* constants;  // bconv: per panel
  const std::int32_t* start;      // conv_u8: what the sums of each pixel start with
  int steps;                      // 16 bytes of a patch each
  int rest;                       // conv: products after the last step
  int passes;                     // conv_u8: bytes per weight
};

using TileFn = void (*)(const Tile&);

// p + at; null stays null.
template <typename T>
OVSW_INLINE T* moved(T* p, std::int64_t at) {
  return p ? p + at : nullptr;
}

inline void init_tile(Tile& t, const KernelArgs& a) {
  t.args = &a;
  t.wide = a.wide;
  t.stream = a.wide && a.residual.kind == Element::kI32 && a.residual.data && a.out.data &&
             (a.act == Act::kNone || a.act == Act::kPrelu);
  t.more = a.act == Act::kPrelu || a.act == Act::kStep || a.constants[kThreshold] != nullptr;
  const bool signs = a.bits && !a.constants[kThreshold] && !a.wide;
  t.first_bits = signs ? reinterpret_cast<std::uint8_t*>(a.bits) + a.first_channel / 8 : nullptr;
  t.channels = a.shape.out_c;
  t.row_bytes = t.channels * std::int64_t(sizeof(std::int16_t));
  t.bit_bytes = ceil_div(a.shape.out_c, kWordBits) * std::int64_t(sizeof(std::uint64_t));
  for (int i = 0; i < 8; ++i) {
    const bool all = a.act == Act::kStep || a.wide;
    t.least[i] = all ? std::int16_t(-32768) : std::int16_t(a.lo);
    t.most[i] = all ? std::int16_t(32767) : std::int16_t(a.hi);
    t.bit[i] = t.bit[i + 8] = std::uint8_t(1 << i);
  }
}

OVSW_INLINE void move_tile(Tile& t, std::int64_t pixel) {
  const KernelArgs& a = *t.args;
  const std::int64_t at = pixel * t.channels + a.first_channel;
  t.pixel = pixel;
  t.residual = moved(a.residual.as<const std::int16_t>(Element::kI16), at);
  t.residual32 = moved(a.residual.as<const std::int32_t>(Element::kI32), at);
  t.out = moved(a.out.as<std::int16_t>(Element::kI16), at);
  if (a.wide) {
    t.wide_out = moved(a.out.as<std::int32_t>(Element::kI32), at);
    t.wide_bits = moved(reinterpret_cast<std::uint8_t*>(a.bits), pixel * t.bit_bytes + a.first_channel / 8);
    if (!a.bits && !a.residual.data && a.act == Act::kNone) t.out32 = t.wide_out;
  }
  t.bits = moved(t.first_bits, pixel * t.bit_bytes);
}

// q of channels [c, c + n) of some pixels, in rows of kPanel: for the last panel if it is not full, without vectors.
inline OVSW_ONE_COPY void finish_partial(const KernelArgs& a, std::int64_t pixel, int pixels, int c,
                                         const std::int32_t* q) {
  const portable::Epilogue<Numerics::kInteger> epilogue(a);
  const int channels = a.shape.out_c, n = channels - c < kPanel ? channels - c : kPanel;
  for (int p = 0; p < pixels; ++p, ++pixel, q += kPanel) {
    const std::uint64_t signs = epilogue.block(q, pixel * channels + c, c, n);
    std::uint64_t* bits = a.bits + pixel * ceil_div(channels, kWordBits);
    if (a.bits) reinterpret_cast<std::uint8_t*>(bits)[c / 8] = std::uint8_t(signs);
  }
}

// Those numbers of a channel's constant from c on, or `other` if the op has none.
OVSW_INLINE int32x4x2_t wide_row(const KernelArgs& a, Constant which, int c, std::int32_t other) {
  const auto* from = a.constant<std::int32_t>(which);
  if (!from) return {{vdupq_n_s32(other), vdupq_n_s32(other)}};
  return {{vld1q_s32(from + c), vld1q_s32(from + c + 4)}};
}

// The activations of wide ops. Their constants are loaded once per panel; a call computes one pixel, channels 0-3 and
// 4-7 of the panel.
struct NoActivation {
  OVSW_INLINE void operator()(int32x4_t&, int32x4_t&) const {}
};

// A product of 2 * u by SQRDMULH, which doubles and rounds at bit 32, is (u * slope + 2^29) >> 30.
struct Slopes {
  int32x4x2_t below, above;

  OVSW_INLINE Slopes(const KernelArgs& a, int c)
      : below(wide_row(a, kSlope, c, 0)), above(wide_row(a, kPositive, c, 1 << 30)) {}
  OVSW_INLINE void operator()(int32x4_t& v, int32x4_t& w) const {
    v = vqrdmulhq_s32(vaddq_s32(v, v), vbslq_s32(vcltzq_s32(v), below.val[0], above.val[0]));
    w = vqrdmulhq_s32(vaddq_s32(w, w), vbslq_s32(vcltzq_s32(w), below.val[1], above.val[1]));
  }
};

struct AnyActivation {
  Act act;
  int32x4_t lo, hi;
  Slopes slopes;

  OVSW_INLINE AnyActivation(const KernelArgs& a, int c)
      : act(a.act), lo(vdupq_n_s32(std::int32_t(a.lo))), hi(vdupq_n_s32(std::int32_t(a.hi))), slopes(a, c) {}
  OVSW_INLINE void operator()(int32x4_t& v, int32x4_t& w) const {
    if (act == Act::kPrelu) {
      slopes(v, w);
    } else if (act == Act::kClamp) {
      v = vminq_s32(vmaxq_s32(v, lo), hi);
      w = vminq_s32(vmaxq_s32(w, lo), hi);
    } else if (act == Act::kStep) {
      v = vbslq_s32(vcltzq_s32(v), lo, hi);
      w = vbslq_s32(vcltzq_s32(w), lo, hi);
    }
  }
};

// All steps of a wide op for a whole panel, channels [c, c + kPanel). q(channels 0-3, channels 4-7) gives the sums of
// the next pixel after their shift. kStream is what t.stream says.
template <bool kStream, typename Q, typename Activation>
OVSW_INLINE void finish_wide(const Tile& t, int pixels, int c, Q q, Activation activate) {
  const KernelArgs& a = *t.args;
  const std::int64_t channels = t.channels, bit_bytes = t.bit_bytes, from = c - a.first_channel;
  const auto* residual = kStream ? nullptr : moved(t.residual, from);
  const auto* residual32 = kStream ? t.residual32 + from : moved(t.residual32, from);
  auto* out = kStream ? t.wide_out + from : moved(t.wide_out, from);
  auto* bits = moved(t.wide_bits, from / 8);
  const int32x4x2_t threshold = wide_row(a, kThreshold, c, 0);
  const uint16x8_t bit = vmovl_u8(vld1_u8(t.bit));
#pragma GCC unroll 1
  for (; pixels > 0; --pixels) {
    int32x4_t v, w;
    q(v, w);
    if (kStream || residual32) {
      v = vaddq_s32(v, vld1q_s32(residual32));
      w = vaddq_s32(w, vld1q_s32(residual32 + 4));
      residual32 += channels;
    } else if (residual) {
      const int16x8_t r = vld1q_s16(residual);
      v = vaddw_s16(v, vget_low_s16(r));
      w = vaddw_high_s16(w, r);
      residual += channels;
    }
    activate(v, w);
    if (kStream || out) {
      store_pair(out, v, w);
      out += channels;
    }
    if (bits) {
      const uint16x8_t signs = vuzp1q_u16(vreinterpretq_u16_u32(vcgeq_s32(v, threshold.val[0])),
                                          vreinterpretq_u16_u32(vcgeq_s32(w, threshold.val[1])));
      vst1q_lane_u8(bits, add_across(vandq_u16(signs, bit)), 0);
      bits += bit_bytes;
    }
  }
}

// The same from rows of kPanel of q, as a call.
inline OVSW_ONE_COPY void finish_wide_rows(const Tile& t, int pixels, int c, const std::int32_t* q) {
  const auto next = [&q](int32x4_t& v, int32x4_t& w) OVSW_INLINE_LAMBDA { load_step(v, w, q); };
  finish_wide<false>(t, pixels, c, next, AnyActivation(*t.args, c));
}

// The end of a pixel's last word of bits, past its last panel, is zero.
OVSW_INLINE void clear_last_words(const Tile& t, int pixels) {
  const KernelArgs& a = *t.args;
  if (!a.bits || (a.last_channel + kPanel - 1) / kPanel * kPanel % kWordBits == 0) return;
  std::uint8_t* last = reinterpret_cast<std::uint8_t*>(a.bits) + (t.pixel + 1) * t.bit_bytes - sizeof(std::uint64_t);
  for (int p = 0; p < pixels; ++p, last += t.bit_bytes) std::memset(last, 0, sizeof(std::uint64_t));
}

// The second half of all panels of a tile, one after the other. kMayBeWide: or the kernel has its own for wide ops.
template <int P, bool kMayBeWide>
struct Finish {
  explicit OVSW_INLINE Finish(const Tile& tile)
      : t(tile),
        channels(t.channels),
        row_bytes(t.row_bytes),
        bit_bytes(t.bit_bytes),
        residual(t.residual),
        residual32(t.residual32),
        out(t.out),
        out32(t.out32),
        wide(t.wide),
        bits(t.bits),
        more(t.more),
        left(t.args->last_channel - t.args->first_channel) {}

  // sum(p, channels 0-3, channels 4-7) gives the sums of pixel p, base included, one pixel after the other, so that
  // they need not exist all at once. Shifts are negated. Returns whether there are more panels.
  template <typename Sum>
  OVSW_INLINE bool panel(int32x4_t shift0, int32x4_t shift1, Sum sum) {
    left -= kPanel;
    if (__builtin_expect(left < 0 || (kMayBeWide && wide && !out32), 0)) {
      std::int32_t q[P * kPanel];
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA {
        int32x4_t lo, hi;
        sum(p, lo, hi);
        vst1q_s32(q + p * kPanel, vshlq_s32(lo, shift0));
        vst1q_s32(q + p * kPanel + 4, vshlq_s32(hi, shift1));
      });
      const int c = t.args->last_channel - left - kPanel;
      if (left < 0) {
        finish_partial(*t.args, t.pixel, P, c, q);
      } else {
        finish_wide_rows(t, P, c, q);
      }
      return left > 0;
    }
    if (kMayBeWide && out32) {
      std::int32_t* to = out32;
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA {
        int32x4_t lo, hi;
        sum(p, lo, hi);
        store_pair(to, vshlq_s32(lo, shift0), vshlq_s32(hi, shift1));
        to += channels;
      });
      out32 += kPanel;
      return left > 0;
    }
    int16x8_t v[P];
    const int16x8_t least = vld1q_s16(t.least), most = vld1q_s16(t.most);
    const auto narrow = [&](int32x4_t lo, int32x4_t hi) OVSW_INLINE_LAMBDA {
      return vminq_s16(vmaxq_s16(vqmovn_high_s32(vqmovn_s32(lo), hi), least), most);
    };
    if (residual) {
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA {
        int32x4_t lo, hi;
        sum(p, lo, hi);
        const int16x8_t r = load_step(residual, row_bytes);
        v[p] = narrow(vaddw_s16(vshlq_s32(lo, shift0), vget_low_s16(r)), vaddw_high_s16(vshlq_s32(hi, shift1), r));
      });
      residual = residual - P * channels + kPanel;
    } else if (residual32) {
      const std::int32_t* r = residual32;
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA {
        int32x4_t lo, hi;
        sum(p, lo, hi);
        lo = vaddq_s32(vshlq_s32(lo, shift0), vld1q_s32(r));
        v[p] = narrow(lo, vaddq_s32(vshlq_s32(hi, shift1), vld1q_s32(r + 4)));
        r += channels;
      });
      residual32 += kPanel;
    } else {
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA {
        int32x4_t lo, hi;
        sum(p, lo, hi);
        v[p] = narrow(vshlq_s32(lo, shift0), vshlq_s32(hi, shift1));
      });
    }
    if (__builtin_expect(more, 0)) finish_more(v);
    if (out) {
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { store_step(out, v[p], row_bytes); });
      out = out - P * channels + kPanel;
    }
    if (bits) {
      put_bits(bits, v);
      bits = bits - P * bit_bytes + 1;
    }
    return left > 0;
  }

  // The first channel of the next panel, which is not passed to panel(); left is then what comes after it.
  OVSW_INLINE int skip_panel() {
    left -= kPanel;
    return t.args->last_channel - left - kPanel;
  }

  // Step, slopes, and the bits if there are thresholds.
  OVSW_INLINE void finish_more(int16x8_t (&v)[P]) {
    const KernelArgs& a = *t.args;
    const int c = a.last_channel - left - kPanel;
    if (a.act == Act::kStep) {
      const int16x8_t lo = vdupq_n_s16(std::int16_t(a.lo)), hi = vdupq_n_s16(std::int16_t(a.hi));
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { v[p] = vbslq_s16(vcltzq_s16(v[p]), lo, hi); });
    } else if (a.act == Act::kPrelu) {
      const auto* positive = a.constant<std::int16_t>(kPositive);
      scale(v, vld1q_s16(a.constant<std::int16_t>(kSlope) + c),
            positive ? vld1q_s16(positive + c) : vdupq_n_s16(1 << 14));
    }
    const auto* threshold = a.constant<std::int16_t>(kThreshold);
    if (threshold && a.bits) {
      const int16x8_t least = vld1q_s16(threshold + c);
      int16x8_t less[P];  // negative where the bit is 0
      Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA { less[p] = vreinterpretq_s16_u16(vcgtq_s16(least, v[p])); });
      std::uint8_t* to = reinterpret_cast<std::uint8_t*>(a.bits) + t.pixel * bit_bytes + c / 8;
      put_bits(to, less);
    }
  }

  // ((2 * v + 1) * slope) >> 15, which is (v * slope + (slope >> 1)) >> 14, by the slope for v's sign.
  OVSW_INLINE void scale(int16x8_t (&v)[P], int16x8_t negative, int16x8_t positive) {
    Unroll<P>::run([&](int p) OVSW_INLINE_LAMBDA {
      const int16x8_t slope = vbslq_s16(vcltzq_s16(v[p]), negative, positive), half = vshrq_n_s16(slope, 1);
      const int32x4_t low = vaddw_s16(vmull_s16(vget_low_s16(v[p]), vget_low_s16(slope)), vget_low_s16(half));
      const int32x4_t high = vaddw_high_s16(vmull_high_s16(v[p], slope), half);
      v[p] = vqshrn_high_n_s32(vqshrn_n_s32(low, 14), high, 14);
    });
  }

  // One byte per pixel. The high bytes of two pixels' values go into one register, each byte keeps its channel's bit
  // where it is not negative, and pairwise sums bring 8 bytes together in three steps for all pixels at once.
  OVSW_INLINE void put_bits(std::uint8_t*& to, const int16x8_t (&v)[P]) {
    const uint8x16_t bit = vld1q_u8(t.bit);
    uint8x16_t m[4];
    Unroll<(P + 1) / 2>::run([&](int i) OVSW_INLINE_LAMBDA {
      const int8x16_t x = vreinterpretq_s8_s16(v[2 * i]),
                      y = vreinterpretq_s8_s16(v[2 * i + 1 < P ? 2 * i + 1 : 2 * i]);
      m[i] = vandq_u8(vcgezq_s8(vuzp2q_s8(x, y)), bit);
    });
    uint8x16_t sum = vpaddq_u8(m[0], m[P > 2 ? 1 : 0]);
    sum = vpaddq_u8(sum, P > 4 ? vpaddq_u8(m[2], m[P > 6 ? 3 : 2]) : sum);
    sum = vpaddq_u8(sum, sum);
    store_byte_step<0>(to, sum, bit_bytes);
    if constexpr (P > 1) store_byte_step<1>(to, sum, bit_bytes);
    if constexpr (P > 2) store_byte_step<2>(to, sum, bit_bytes);
    if constexpr (P > 3) store_byte_step<3>(to, sum, bit_bytes);
    if constexpr (P > 4) store_byte_step<4>(to, sum, bit_bytes);
    if constexpr (P > 5) store_byte_step<5>(to, sum, bit_bytes);
    if constexpr (P > 6) store_byte_step<6>(to, sum, bit_bytes);
    if constexpr (P > 7) store_byte_step<7>(to, sum, bit_bytes);
  }

  const Tile& t;
  const std::int64_t channels, row_bytes, bit_bytes;  // copies: the assembly might change those in memory
  const std::int16_t* residual;
  const std::int32_t* residual32;
  std::int16_t* out;
  std::int32_t* out32;
  const bool wide;
  std::uint8_t* bits;
  const bool more;
  int left;  // channels
};

}  // namespace ovsw::OVSW_ISA::neon
