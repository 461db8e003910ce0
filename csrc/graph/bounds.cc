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
constexpr int kMaxShift = 31, kMaxWideShift = 47;
constexpr std::int64_t kMaxTaps = 65535;  // of avgpool

class Checker {
 public:
  explicit Checker(const Graph& graph) : graph_(graph), most_(graph.values.size(), 0) {}

  void check_all() {
    for (float m : graph_.mean) check(std::abs(m) <= kMaxMean, "header field mean holds ", m);
    for (const Op& op : graph_.ops) check_op(op);
  }

 private:
  template <typename... Parts>
  static void require(const Op& op, bool condition, const Parts&... parts) {
    check(condition, "op '", op.name, "': ", parts...);
  }

  void check_op(const Op& op) {
    const std::int64_t q = largest_result(op);
    const std::int64_t residual = op.residual == kAbsent ? 0 : most_[op.residual];
    require(op, q + residual <= kInt32, "its sum with the residual may leave 32 bits");
    if (op.out_map == kAbsent) return;
    const bool wide = graph_.values[op.out_map].kind == ValueKind::kI32;
    const std::int64_t limit = std::int64_t(std::max(std::abs(op.clamp_lo), std::abs(op.clamp_hi)));
    const bool hands_on = (op.kind == OpKind::kMaxpool || op.kind == OpKind::kChannelPad) && op.residual == kAbsent &&
                          op.act == Act::kNone;
    most_[op.out_map] = wide ? q : hands_on ? std::min(limit, most_[op.input]) : limit;
  }

  // The largest |q| that an op can compute.
  std::int64_t largest_result(const Op& op) const {
    const Shape& s = op.shape;
    const std::size_t taps = std::size_t(s.kernel_h) * std::size_t(s.kernel_w) * std::size_t(s.in_c);
    const int most_shift = op.kind == OpKind::kAvgpool || op.kind == OpKind::kLinear ? kMaxWideShift : kMaxShift;
    std::int64_t most = op.shift ? 0 : kInt16;
    for (int c = 0; op.shift && c < s.out_c; ++c) {
      const int shift = op.shift[c];
      require(op, shift <= most_shift, "shift[", c, "] is ", shift, ", allowed are 0 to ", most_shift);
      const std::int64_t q = channel_result(op, c, taps, shift);
      require(op, q <= kInt32, "channel ", c, " may leave 32 bits");
      most = std::max(most, q);
    }
    return most;
  }

  // The largest |q| of channel c, or something over 32 bits where an intermediate sum is.
  std::int64_t channel_result(const Op& op, int c, std::size_t taps, int shift) const {
    const Shape& s = op.shape;
    const std::int64_t offset = std::abs(std::int64_t(op.int_offset[c]));
    if (op.kind == OpKind::kBconv) {
      require(op, op.mult[c] >= 0, "scale[", c, "] is ", op.mult[c], ", expected 0 or more");
      const std::int64_t sum = std::int64_t(op.mult[c]) * std::int64_t(taps) + offset;
      return sum <= kInt32 ? shifted(sum, shift) : sum;
    }
    if (op.kind == OpKind::kAvgpool) {
      const std::int64_t n = std::int64_t(s.kernel_h) * s.kernel_w;
      require(op, n <= kMaxTaps, "has ", n, " taps, allowed are ", kMaxTaps);
      return shifted(kInt16 * n * std::abs(std::int64_t(op.mult[c])) + offset, shift) + kInt16;
    }
    std::int64_t weights = 0;
    for (std::size_t i = 0; i < taps; ++i) weights += std::abs(int(op.int_weight(std::size_t(c) * taps + i)));
    if (op.kind == OpKind::kLinear) return ((kInt16 * weights) >> shift) + 1 + offset;
    const bool pixels = op.input == 0;
    const std::int64_t products = (pixels ? 255 : most_[op.input]) * weights;
    if (products > kInt32) return products;
    const std::int64_t sum = products + offset + (pixels ? zero_point(op, c, taps) : 0);
    return sum <= kInt32 ? shifted(sum, shift) : sum;
  }

  std::int64_t zero_point(const Op& op, int c, std::size_t taps) const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < taps; ++i) {
      const int channel = int(i % std::size_t(op.shape.in_c));
      sum += std::abs(int(op.int_weight(std::size_t(c) * taps + i))) * std::abs(graph_.zero(channel));
    }
    return (sum + 255) / 256 + 1;
  }

  // floor of a negative number is the larger one in size
  static std::int64_t shifted(std::int64_t sum, int shift) { return (sum + (std::int64_t(1) << shift) - 1) >> shift; }

  const Graph& graph_;
  std::vector<std::int64_t> most_;  // per value, the largest |x|
};

}  // namespace

void check_integer_bounds(const Graph& graph) { Checker(graph).check_all(); }

}  // namespace ovsw
