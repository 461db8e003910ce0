// The kernels of a training unit, compiled once per instruction set. convolve.h and weights.h have the convolutions,
// maps.h the elementwise work; this file packs images side by side into rows of lanes and back.

#include <array>
#include <cmath>

#include "kernels/train/convolve.h"
#include "kernels/train/maps.h"
#include "kernels/train/weights.h"

namespace ovsw::train::OVSW_ISA {
namespace {

// --- signs -----------------------------------------------------------------------------------------------------------

// `count` bits, up to 32, from bit `first` of a map of signs.
inline std::uint32_t bits_at(const std::uint32_t* words, std::size_t first, int count) {
  std::uint64_t both;
  std::memcpy(&both, words + first / 32, sizeof both);
  return std::uint32_t(both >> (first % 32)) & (count == 32 ? ~0u : (1u << count) - 1);
}

// The same, up to 64.
inline std::uint64_t wide_bits_at(const std::uint32_t* words, std::size_t first, int count) {
  const std::uint64_t low = bits_at(words, first, std::min(count, 32));
  return count <= 32 ? low : low | std::uint64_t(bits_at(words, first + 32, count - 32)) << 32;
}

// Every second bit, from bit 0.
inline std::uint32_t even_bits(std::uint32_t v) {
  v &= 0x55555555u;
  v = (v | v >> 1) & 0x33333333u;
  v = (v | v >> 2) & 0x0F0F0F0Fu;
  v = (v | v >> 4) & 0x00FF00FFu;
  return (v | v >> 8) & 0x0000FFFFu;
}
inline std::uint32_t even_bits(std::uint64_t v) {
  return even_bits(std::uint32_t(v)) | even_bits(std::uint32_t(v >> 32)) << 16;
}

// Eight bits as eight bytes of +1 and -1.
constexpr auto kSpread = [] {
  std::array<std::array<std::int8_t, 8>, 256> table{};
  for (std::size_t bits = 0; bits < 256; ++bits) {
    for (std::size_t i = 0; i < 8; ++i) table[bits][i] = bits >> i & 1 ? 1 : -1;
  }
  return table;
}();

inline void spread(std::uint64_t bits, int count, std::int8_t* to) {
  int i = 0;
  for (; i + 8 <= count; i += 8) std::memcpy(to + i, kSpread[bits >> i & 255].data(), 8);
  if (i < count) std::memcpy(to + i, kSpread[bits >> i & 255].data(), std::size_t(count - i));
}

// --- forward ---------------------------------------------------------------------------------------------------------

std::size_t sign_planes(const Unit& u) {
  return std::size_t(u.stride) * std::size_t(u.cin) * std::size_t(u.h) * kRowBytes;
}

std::size_t dot_rows(const Unit& u) {  // of one filter more, for the sums of windows
  return std::size_t(u.cout + 1) * std::size_t(u.out_h()) * kSigns * sizeof(std::int16_t);
}

std::size_t forward_scratch(const Unit& u) { return sign_planes(u) + dot_rows(u) + 6 * kGroups * kTable; }

// Copies the rows of one image's map out of a pack.
inline void copy_map(const std::int16_t* rows, int count, int width, std::int16_t* to) {
  for (int y = 0; y < count; ++y, rows += kSigns, to += width) {
    switch (width) {  // sizes that the compiler knows
      case 32:
        std::memcpy(to, rows, 64);
        break;
      case 16:
        std::memcpy(to, rows, 32);
        break;
      case 8:
        std::memcpy(to, rows, 16);
        break;
      default:
        std::memcpy(to, rows, std::size_t(width) * 2);
    }
  }
}

inline void sums_of(const std::int16_t* dots, std::size_t count, std::int64_t* sums) {
  constexpr std::size_t lanes = kBytes / 2;
  const Vector<std::int16_t> ones = Vector<std::int16_t>{} + std::int16_t(1);
  std::int64_t total = 0, squares = 0;
  std::size_t i = 0;
  while (i + lanes <= count) {  // 16 squares of two dots each, up to 4608, fit in 31 bits
    Vector<std::int32_t> s = {}, q = {};
    for (int k = 0; k < 16 && i + lanes <= count; ++k, i += lanes) {
      const auto v = get<int(lanes)>(dots + i);
      s += products(v, ones), q += products(v, v);
    }
    for (int l = 0; l < kBytes / 4; ++l) total += s[l], squares += q[l];
  }
  for (; i < count; ++i) total += dots[i], squares += dots[i] * dots[i];
  sums[0] = total, sums[1] = squares;
}

void forward(const Forward& f, int first_pack, int last_pack, std::byte* scratch) {
  const Unit& u = f.unit;
  const int width = u.out_w(), images = u.images(kSigns), ho = u.out_h(), filters = u.cout + (f.windows ? 1 : 0);
  auto* signs = reinterpret_cast<std::int8_t*>(take(scratch, sign_planes(u)));
  auto* odd = signs + std::size_t(u.cin) * std::size_t(u.h) * kSigns;
  auto* dots = reinterpret_cast<std::int16_t*>(take(scratch, dot_rows(u)));
  const Borders<std::int8_t> borders(width, images);
  const bool full = images * width == kSigns && u.w % u.stride == 0;  // every lane is written
  if (!full) std::memset(signs, 0, sign_planes(u));
  for (int pack = first_pack; pack < last_pack; ++pack) {
    const int first = pack * images, count = std::min(images, u.n - first);
    if (count < images) std::memset(signs, 0, sign_planes(u));
    for (int j = 0; j < count; ++j) {
      const std::uint32_t* words = f.bits + std::size_t(first + j) * u.words();
      for (int row = 0; row < u.cin * u.h; ++row) {
        const std::uint64_t bits = wide_bits_at(words, std::size_t(row) * std::size_t(u.w), u.w);
        const std::size_t at = std::size_t(row) * kSigns + std::size_t(j * width);
        if (u.stride == 1) {
          spread(bits, width, signs + at);
        } else {
          spread(even_bits(bits), width, signs + at);
          spread(even_bits(bits >> 1), u.w / 2, odd + at);
        }
      }
    }
    if (u.stride == 1) {
      convolve<std::int8_t, Way::kSame>(signs, u.cin, u.h, f.offsets, filters, dots, ho, borders, scratch);
    } else {
      convolve<std::int8_t, Way::kDown>(signs, u.cin, u.h, f.offsets, filters, dots, ho, borders, scratch);
    }
    for (int j = 0; j < count; ++j) {
      const std::size_t image = std::size_t(first + j);
      for (int c = 0; c < filters; ++c) {
        const std::int16_t* rows = dots + std::size_t(c) * std::size_t(ho) * kSigns + j * width;
        if (c == u.cout) {
          copy_map(rows, ho, width, f.windows + image * u.out_pixels());
          continue;
        }
        const std::size_t map = image * std::size_t(u.cout) + std::size_t(c);
        copy_map(rows, ho, width, f.dots + map * u.out_pixels());
        sums_of(f.dots + map * u.out_pixels(), u.out_pixels(), f.sums + 2 * map);
      }
    }
  }
}

// --- backward --------------------------------------------------------------------------------------------------------

// The gradient of z of one pack, (channel, row, lane).
void grad_of_z(const Backward& b, const Pack& pack, float* to) {
  const Unit& u = b.unit;
  const int width = u.out_w(), ho = u.out_h(), start = pack.start - pack.left;
  for (int j = 0; j < pack.count; ++j) {
    for_maps(b.of_z.maps, pack.first + j, pack.first + j + 1, [&](int map, const auto* z) {
      const int c = map % u.cout;
      const float* g = b.of_z.g + std::size_t(map) * u.out_pixels() + start;
      float* rows = to + std::size_t(c) * std::size_t(ho) * kFloats + j * pack.lanes();
      grad_rows(b.of_z, c, g, z + start, ho, pack.lanes(), width, rows, kFloats);
    });
  }
}

// Columns that are only here for their neighbours must not count twice.
void clear_neighbours(const Unit& u, const Pack& pack, float* gz) {
  if (!pack.left && !pack.right) return;
  for (int row = 0; row < u.cout * u.out_h(); ++row, gz += kFloats) {
    if (pack.left) gz[0] = 0;
    if (pack.right) gz[pack.lanes() - 1] = 0;
  }
}

// The gradient of a convolution's input from that of its output, in rows of lanes.
void convolve_back(const Unit& u, const float* grad, int channels, const std::uint16_t* offsets, int filters,
                   const Borders<float>& borders, float* to, std::byte* tables) {
  if (u.stride == 1) {
    convolve<float, Way::kSame>(grad, channels, u.out_h(), offsets, filters, to, u.h, borders, tables);
  } else {
    convolve<float, Way::kUp>(grad, channels, u.out_h(), offsets, filters, to, u.h, borders, tables);
  }
}

// With weights of w + ratio, the gradient through the second term is the same for all input channels: `common` receives
// it, one row of lanes for each row of the input, two with stride 2. `block` has 16 channels, of which one is used.
void common_gradient(const Backward& b, const float* gz, const Borders<float>& borders, float* block, float* common,
                     std::byte* tables) {
  const Unit& u = b.unit;
  const std::size_t rows = std::size_t(u.out_h()) * kFloats;
  std::memset(block, 0, rows * kBlock * sizeof(float));
  for (int c = 0; c < u.cout; ++c) {
    const float* from = gz + std::size_t(c) * rows;
    for (std::size_t i = 0; i < rows; ++i) block[i] += b.ratio[c] * from[i];
  }
  std::uint16_t ones[3 * kTaps];
  std::fill(ones, ones + 3 * kTaps, std::uint16_t(15 * kRowBytes));
  convolve_back(u, block, kBlock, ones, 1, borders, common, tables);
}

// One row of the gradient of an image's signs, with even and odd columns joined if they are stored apart.
inline const float* whole_row(const Unit& u, const float* rows, std::size_t row, int lane, float* joined) {
  if (u.stride == 1) return rows + row * kFloats + lane;
  const float *even = rows + 2 * row * kFloats + lane, *odd = even + kFloats;
  for (int i = 0; i < u.w / 2; ++i) joined[2 * i] = even[i], joined[2 * i + 1] = odd[i];
  if (u.w % 2) joined[u.w - 1] = even[u.w / 2];
  return joined;
}

// gs times the gradient of the sign, plus the residual's gradient if kResidual, for one channel of an image.
template <bool kShift, bool kCommon, bool kResidual>
void grad_of_channel(const Backward& b, const Pack& pack, int j, int c, const float* gs, const float* common) {
  const Unit& u = b.unit;
  const int image = pack.first + j, lane = j * pack.lanes() + pack.left, width = u.stride == 1 ? pack.width : u.w;
  const std::size_t at =
      (std::size_t(image) * std::size_t(u.cin) + std::size_t(c)) * u.in_pixels() + std::size_t(pack.start);
  const float *x = b.input.x + at, *g = b.of_z.g + at;
  float* to = b.grad_x + at;
  const float shift = kShift ? b.input.shift[c] : 0.0f;
  const float inverse = 1.0f / b.deviation[image], twice = 2 * inverse, steep = twice * inverse;
  for (int y = 0; y < u.h; ++y, x += u.w, g += u.w, to += u.w) {
    alignas(64) float one[kMaxWidth], two[kMaxWidth];
    const float* from = whole_row(u, gs, std::size_t(c * u.h + y), lane, one);
    const float* more = kCommon ? whole_row(u, common, std::size_t(y), lane, two) : nullptr;
    in_spans(width, [&](auto lanes, int i) {
      constexpr int n = decltype(lanes)::value;
      auto v = get<n>(x + i), grad = get<n>(from + i);
      if constexpr (kShift) v += shift;
      auto window = twice - steep * absolute(v);
      window = window > 0 ? window : decltype(window){};
      if constexpr (kCommon) grad += get<n>(more + i);
      grad *= window;
      if constexpr (kResidual) grad += get<n>(g + i);
      put(to + i, grad);
    });
  }
}

// If the gradient of a shift is needed, that of the residual is added only after it is known.
bool residual_is_last(const Backward& b) { return b.add_residual && (b.input.shift || b.ratio || b.grad_shift); }

void grad_of_input(const Backward& b, const Pack& pack, const float* gs, const float* common) {
  const bool residual = b.add_residual && !residual_is_last(b);
  const auto with_shift = common ? grad_of_channel<true, true, false> : grad_of_channel<true, false, false>;
  const auto without = common     ? grad_of_channel<false, true, false>
                       : residual ? grad_of_channel<false, false, true>
                                  : grad_of_channel<false, false, false>;
  const auto grad = b.input.shift ? with_shift : without;
  for (int j = 0; j < pack.count; ++j) {
    for (int c = 0; c < b.unit.cin; ++c) grad(b, pack, j, c, gs, common);
  }
}

// The sums for the gradient of shift and deviation; then adds the residual's gradient if it comes last.
void sum_gradients(const Backward& b, int first, int count) {
  const Unit& u = b.unit;
  const bool add = residual_is_last(b);
  if (!b.grad_shift && !add) return;
  for (int map = first * u.cin; map < (first + count) * u.cin; ++map) {
    const std::size_t at = std::size_t(map) * u.in_pixels();
    const float *x = b.input.x + at, *g = b.of_z.g + at, shift = b.input.shift ? b.input.shift[map % u.cin] : 0.0f;
    float* to = b.grad_x + at;
    double sums[2];
    add_up<2>(u.in_pixels(), sums, [&](auto lanes, std::size_t i, auto& out) {
      constexpr int n = decltype(lanes)::value;
      const auto grad = get<n>(to + i);
      out[0] = grad, out[1] = grad * (get<n>(x + i) + shift);
      if (add) put(to + i, grad + get<n>(g + i));
    });
    if (b.grad_shift) std::copy(sums, sums + 2, b.grad_shift + 2 * map);
  }
}

// Per input channel, row and window column: the signs that the column meets, one bit per lane. Outside counts as -1.
template <int kStride>
void column_bits(const Backward& b, const Pack& pack, std::uint32_t* bits) {
  const Unit& u = b.unit;
  const int rows = b.grad_channels() * u.h, real = u.cin * u.h, start = pack.start - pack.left;
  const std::uint64_t all = (std::uint64_t(1) << pack.lanes()) - 1, whole = ~std::uint64_t(0) >> (64 - u.w);
  for (int j = 0; j < pack.count; ++j) {
    const std::uint32_t* words = b.input.bits + std::size_t(pack.first + j) * u.words();
    const int lane = j * pack.lanes();
    for (int row = 0; row < rows; ++row) {
      const std::uint64_t signs = row < real ? wide_bits_at(words, std::size_t(row) * std::size_t(u.w), u.w) : whole;
      const std::uint64_t middle = kStride == 1 ? signs : even_bits(signs);
      const std::uint64_t right = kStride == 1 ? signs >> 1 : even_bits(signs >> 1);
      const std::uint64_t left = (kStride == 1 ? signs : right) << 1;
      const std::uint64_t columns[3] = {left, middle, right};
      for (int kx = 0; kx < 3; ++kx) {
        std::uint32_t& to = bits[3 * row + kx];
        to = (j == 0 ? 0 : to) | std::uint32_t(columns[kx] >> start & all) << lane;
      }
    }
  }
}

constexpr int kBackwardParts = 7;

std::size_t backward_parts(const Unit& u, std::size_t (&bytes)[kBackwardParts]) {
  const std::size_t ho = std::size_t(u.out_h()), h = std::size_t(u.h), stride = std::size_t(u.stride);
  bytes[0] = std::size_t(u.cout) * ho * kRowBytes;                                        // gradient of z
  bytes[1] = stride * std::size_t(u.cin) * h * kRowBytes;                                 // that of the signs
  bytes[2] = std::size_t(u.cin + 2) * h * 3 * sizeof(std::uint32_t);                      // bits
  bytes[3] = std::size_t(kRowsTogether) * kFloats * kBlock * sizeof(float);               // transposed rows
  bytes[4] = kBlock * ho * kRowBytes;                                                     // of common_gradient
  bytes[5] = stride * h * kRowBytes;                                                      // what that gives
  bytes[6] = std::max(3 * kGroups * kTable, kRowsTogether * kPixelGroups * kPixelTable);  // tables
  std::size_t total = 0;
  for (std::size_t b : bytes) total += (b + 63) / 64 * 64;
  return total;
}

std::size_t backward_scratch(const Unit& u) {
  std::size_t bytes[kBackwardParts];
  return backward_parts(u, bytes);
}

void backward(const Backward& b, int first_pack, int last_pack, float* grad_w, std::byte* scratch) {
  const Unit& u = b.unit;
  const int images = u.images(kFloats);
  std::size_t bytes[kBackwardParts];
  backward_parts(u, bytes);
  auto* gz = reinterpret_cast<float*>(take(scratch, bytes[0]));
  auto* gs = reinterpret_cast<float*>(take(scratch, bytes[1]));
  auto* bits = reinterpret_cast<std::uint32_t*>(take(scratch, bytes[2]));
  auto* pixels = reinterpret_cast<float*>(take(scratch, bytes[3]));
  auto* block = reinterpret_cast<float*>(take(scratch, bytes[4]));
  auto* common = reinterpret_cast<float*>(take(scratch, bytes[5]));
  std::byte* tables = scratch;
  // A map that is wider than a row of lanes is cut into parts of equal width, each with a column of its neighbours.
  const int parts = u.out_w() > kFloats ? (u.out_w() + kFloats - 3) / (kFloats - 2) : 1;
  for (int at = first_pack; at < last_pack; ++at) {
    const int first = at * images, count = std::min(images, u.n - first);
    for (int part = 0; part < parts; ++part) {
      const int start = u.out_w() * part / parts, end = u.out_w() * (part + 1) / parts;
      const Pack pack{first, count, start, end - start, int(start > 0), int(end < u.out_w())};
      const Borders<float> borders(pack.lanes(), count);
      if (pack.count * pack.lanes() < kFloats) std::memset(gz, 0, bytes[0]);  // lanes that nothing writes
      grad_of_z(b, pack, gz);
      if (b.grad_x) {
        convolve_back(u, gz, u.cout, b.offsets, u.cin, borders, gs, tables);
        if (b.ratio) common_gradient(b, gz, borders, block, common, tables);
        grad_of_input(b, pack, gs, b.ratio ? common : nullptr);
      }
      clear_neighbours(u, pack, gz);
      u.stride == 1 ? column_bits<1>(b, pack, bits) : column_bits<2>(b, pack, bits);
      grad_of_weights(u, b.grad_channels(), pack, gz, bits, pixels, tables, grad_w);
    }
    if (b.grad_x) sum_gradients(b, first, count);
  }
}

}  // namespace

#define OVSW_QUOTE(name) #name
#define OVSW_TEXT(name) OVSW_QUOTE(name)

extern const Kernels kKernels;
const Kernels kKernels = {
    OVSW_TEXT(OVSW_ISA), measure,          forward_scratch, forward, two_valued, sums, apply, reduce,
    grad_of_maps,        backward_scratch, backward};

}  // namespace ovsw::train::OVSW_ISA
