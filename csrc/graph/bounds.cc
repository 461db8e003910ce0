#include "csrc/graph/bounds.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "csrc/base/error.h"

namespace ovsw {
namespace {

constexpr std::int64_t kInt32 = (std::int64_t(1) << 31) - 1;
constexpr std::int64_t kInt16 = 32768;
constexpr double kMaxMean = 256.0;
constexpr std::int64_t kMaxTaps = 65535;  // of avgpool
constexpr int kMaxWideShift = 62;         // of avgpool and mul over an i32

class Checker {
 public:
  Checker(const Graph& graph, const std::vector<std::uint32_t>& given) : graph_(graph), most_(graph.values.size(), 0) {
    for (std::uint32_t v : given) {
      const Element kind = graph.values[v].kind;
      most_[v] = kind == Element::kU8 ? 255 : kind == Element::kI32 ? kInt32 / 4 + 1 : kInt16;
    }
  }

  void check_all() {
    for (float m : graph_.mean)
      check(std::abs(m) <= kMaxMean, "header field mean holds ", m, ", expected -", kMaxMean, " to ", kMaxMean);
    for (const Op& op : graph_.ops) check_op(op);
  }

 private:
  template <typename... Parts>
  static void require(const Op& op, bool condition, const Parts&... parts) {
    check(condition, "op '", op.name, "': ", parts...);
  }

  void check_op(const Op& op) {
    const std::int64_t q = largest_result(op);
    const bool adds = op.residual != kAbsent && !op.traits->is(kOperand);
    const std::int64_t residual = adds ? most_[op.residual] : 0;
    require(op, q + residual <= kInt32, "its sum with the residual may overflow 32 bits");
    const std::int64_t largest = op.wide ? largest_wide_value(op, q + residual) : largest_value(op, adds);
    if (op.out != kAbsent) most_[op.out] = largest;
  }

  std::int64_t largest_value(const Op& op, bool adds) const {
    const bool copies = op.traits->is(kCopiesInput) && !adds && op.act == Act::kNone;
    return copies ? std::min(largest_level(op), largest_input(op)) : largest_level(op);
  }

  // Of a wide op, for sums of at most u.
  static std::int64_t largest_wide_value(const Op& op, std::int64_t u) {
    if (op.act == Act::kNone) return u;
    if (op.act != Act::kPrelu) return largest_level(op);
    require(op, u < std::int64_t(1) << 30, "may reach ", u, " before its prelu, expected less than 2^30");
    std::int64_t slope = op.constant<std::int32_t>(kPositive) ? 0 : std::int64_t(1) << 30;
    for (Constant which : {kSlope, kPositive}) {
      const auto* slopes = op.constant<std::int32_t>(which);
      for (int c = 0; slopes && c < op.shape.out_c; ++c) slope = std::max(slope, std::abs(std::int64_t(slopes[c])));
    }
    return ((u * slope) >> 30) + 1;  // at most kInt32
  }

  static std::int64_t largest_level(const Op& op) {
    return std::int64_t(std::max(std::abs(op.clamp_lo), std::abs(op.clamp_hi)));
  }

  std::int64_t largest_input(const Op& op) const {
    const std::int64_t other = op.traits->is(kOperand) ? most_[op.residual] : 0;
    return std::max({most_[op.input], other, std::int64_t(std::abs(op.pad_value))});
  }

  // The largest |q| that an op can compute.
  std::int64_t largest_result(const Op& op) const {
    const Shape& s = op.shape;
    const std::size_t taps = op.taps() * std::size_t(s.group_in());
    const auto* shifts = op.constant<std::uint8_t>(kShift);
    const bool from_i32 = graph_.values[op.input].kind == Element::kI32;
    const int allowed = from_i32 ? kMaxWideShift : op.traits->max_shift;
    std::int64_t most = shifts ? 0 : from_i32 ? largest_input(op) : kInt16;
    for (int c = 0; shifts && c < s.out_c; ++c) {
      const int shift = shifts[c];
      require(op, shift <= allowed, "shift[", c, "] is ", shift, ", expected 0 to ", allowed);
      const std::int64_t q = channel_result(op, c, taps, shift);
      require(op, q <= kInt32, "channel ", c, " may overflow 32 bits");
      most = std::max(most, q);
    }
    return most;
  }

  // The largest |q| of channel c, or a number over 32 bits if an intermediate sum may be.
  std::int64_t channel_result(const Op& op, int c, std::size_t taps, int shift) const {
    const Shape& s = op.shape;
    const std::int64_t offset = std::abs(std::int64_t(op.constant<std::int32_t>(kOffset)[c]));
    if (op.traits->is(kBinary)) {
      const std::int64_t scale = op.int_scale(c);
      require(op, scale >= 0, "scale[", c, "] is ", scale, ", expected 0 or more");
      const bool window = op.constant<std::int32_t>(kWindow) != nullptr;
      const std::int64_t factor = scale + (window ? std::abs(op.int_scale(c, kWindow)) : 0);
      const double outside = std::abs(double(op.pad_value));
      const std::int64_t rounding = outside == std::floor(outside) ? 0 : 1;
      const std::int64_t most = std::max<std::int64_t>(1, std::int64_t(std::ceil(outside)));
      const std::int64_t inputs = std::int64_t(taps) * most;
      if (factor > kInt32 / inputs) return kInt32 + 1;
      const std::int64_t sum = factor * inputs + offset + rounding;
      return sum <= kInt32 ? shifted(sum, shift) : sum;
    }
    if (op.core == Core::kAvgpool) {
      const std::int64_t n = std::int64_t(s.window_h) * s.window_w;
      require(op, n <= kMaxTaps, "has ", n, " taps, expected at most ", kMaxTaps);
      return scaled(op, c, n, offset, shift);
    }
    if (op.core == Core::kMul) return scaled(op, c, kInt16, offset, shift);
    std::int64_t weights = 0;
    for (std::size_t i = 0; i < taps; ++i) weights += std::abs(int(op.int_weight(std::size_t(c) * taps + i)));
    if (op.core == Core::kLinear) return ((kInt16 * weights) >> shift) + 1 + offset;
    const std::int64_t products = most_[op.input] * weights;
    if (products > kInt32) return products;
    const std::int64_t sum = products + offset + (op.on_pixels ? zero_point(op, c, taps) : 0);
    return sum <= kInt32 ? shifted(sum, shift) : sum;
  }

  // Of avgpool and mul, whose numbers are those of the input times at most `factor`.
  std::int64_t scaled(const Op& op, int c, std::int64_t factor, std::int64_t offset, int shift) const {
    const std::int64_t scale = std::abs(op.int_scale(c));
    const bool wide = graph_.values[op.input].kind == Element::kI32;
    const std::int64_t x = wide ? most_[op.input] : kInt16, unit = wide ? kOffsetUnit : 1;
    return shifted(x * factor * scale + offset * unit, shift) + kInt16;  // the sum is below 2^62 + 2^47
  }

  std::int64_t zero_point(const Op& op, int c, std::size_t taps) const {
    std::int64_t sum = 0;
    const int channels = op.shape.group_in(), first = c / op.shape.group_out() * channels;
    for (std::size_t i = 0; i < taps; ++i) {
      const int channel = first + int(i % std::size_t(channels));
      sum += std::abs(int(op.int_weight(std::size_t(c) * taps + i))) * std::abs(graph_.zero(channel));
    }
    return (sum + 255) / 256 + 1;
  }

  // Rounds up: of a negative number floor is the larger one in size.
  static std::int64_t shifted(std::int64_t sum, int shift) { return (sum + (std::int64_t(1) << shift) - 1) >> shift; }

  const Graph& graph_;
  std::vector<std::int64_t> most_;  // per value, the largest |x|
};

}  // namespace

void check_integer_bounds(const Graph& graph, const std::vector<std::uint32_t>& given) {
  Checker(graph, given).check_all();
}

}  // namespace ovsw
