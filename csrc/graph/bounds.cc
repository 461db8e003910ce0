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

class Checker {
 public:
  Checker(const Graph& graph, const std::vector<std::uint32_t>& given) : graph_(graph), most_(graph.values.size(), 0) {
    for (std::uint32_t v : given) {
      const Element kind = graph.values[v].kind;
      most_[v] = kind == Element::kU8 ? 255 : kind == Element::kI32 ? kInt32 / 2 + 1 : kInt16;
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
    if (op.out == kAbsent) return;
    const bool wide = graph_.values[op.out].kind == Element::kI32;
    const std::int64_t limit = std::int64_t(std::max(std::abs(op.clamp_lo), std::abs(op.clamp_hi)));
    const bool copies = op.traits->is(kCopiesInput) && !adds && op.act == Act::kNone;
    most_[op.out] = wide ? q : copies ? std::min(limit, largest_input(op)) : limit;
  }

  std::int64_t largest_input(const Op& op) const {
    const std::int64_t other = op.residual == kAbsent ? 0 : most_[op.residual];
    return std::max({most_[op.input], other, std::int64_t(std::abs(op.pad_value))});
  }

  // The largest |q| that an op can compute.
  std::int64_t largest_result(const Op& op) const {
    const Shape& s = op.shape;
    const std::size_t taps = op.taps() * std::size_t(s.group_in());
    const auto* shifts = op.constant<std::uint8_t>(kShift);
    std::int64_t most = shifts ? 0 : kInt16;
    for (int c = 0; shifts && c < s.out_c; ++c) {
      const int shift = shifts[c], allowed = op.traits->max_shift;
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
      const std::int64_t scale = op.constant<std::int16_t>(kScale)[c];
      require(op, scale >= 0, "scale[", c, "] is ", scale, ", expected 0 or more");
      const auto* window = op.constant<std::int16_t>(kWindow);
      const std::int64_t factor = scale + (window ? std::abs(std::int64_t(window[c])) : 0);
      const double outside = std::abs(double(op.pad_value));
      const std::int64_t rounding = outside == std::floor(outside) ? 0 : 1;
      const std::int64_t most = std::max<std::int64_t>(1, std::int64_t(std::ceil(outside)));
      const std::int64_t sum = factor * std::int64_t(taps) * most + offset + rounding;
      return sum <= kInt32 ? shifted(sum, shift) : sum;
    }
    if (op.core == Core::kAvgpool) {
      const std::int64_t n = std::int64_t(s.window_h) * s.window_w;
      require(op, n <= kMaxTaps, "has ", n, " taps, expected at most ", kMaxTaps);
      return shifted(kInt16 * n * std::abs(std::int64_t(op.constant<std::int16_t>(kScale)[c])) + offset, shift) +
             kInt16;
    }
    if (op.core == Core::kMul) {
      const std::int64_t scale = std::abs(std::int64_t(op.constant<std::int16_t>(kScale)[c]));
      return shifted(kInt16 * kInt16 * scale + offset, shift) + kInt16;
    }
    std::int64_t weights = 0;
    for (std::size_t i = 0; i < taps; ++i) weights += std::abs(int(op.int_weight(std::size_t(c) * taps + i)));
    if (op.core == Core::kLinear) return ((kInt16 * weights) >> shift) + 1 + offset;
    const std::int64_t products = most_[op.input] * weights;
    if (products > kInt32) return products;
    const std::int64_t sum = products + offset + (op.on_pixels ? zero_point(op, c, taps) : 0);
    return sum <= kInt32 ? shifted(sum, shift) : sum;
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
