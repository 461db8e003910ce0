// For tests: one step of a plan with each of its buffers (maps, packed weights, constants, border tables, scratch) in a
// block of memory of its own. A block is as long as kernels.h allows a kernel to read; bytes that may be read but not
// used hold a pattern. If a step gives the same bytes with two patterns, it used no such byte and wrote all outputs.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/base/error.h"
#include "csrc/graph/ops.h"
#include "csrc/plan/plan.h"
#include "kernels/kernels.h"

namespace ovsw {

using Bytes = std::vector<std::byte>;

// Block(bytes, align, options) is memory filled with options.pattern; block.intact() says whether its surroundings are
// unchanged.
template <typename Block>
class Isolated {
 public:
  struct Part {
    std::string name;
    std::size_t bytes;  // padding, which may be read, follows up to `end`
    std::size_t end;
    Block block;

    Part(const std::string& part, std::size_t size, std::size_t readable, std::size_t align,
         const typename Block::Options& options)
        : name(part), bytes(size), end(readable), block(readable, align, options) {}
  };

  // `values` has the bytes of the step's inputs. If `in_place`, a residual of the output's layout shares its memory.
  Isolated(const Plan& plan, const Step& step, const std::vector<Bytes>& values, bool in_place,
           const typename Block::Options& options)
      : step_(step), options_(options) {
    const Value* residual = step.residual == kAbsent ? nullptr : &plan.values[step.residual];
    const Value* out = step.out == kAbsent ? nullptr : &plan.values[step.out];
    const bool shared = in_place && residual && out && residual->kind == out->kind && residual->c == out->c &&
                        residual->pixels() == out->pixels() && step.residual != step.in;
    std::vector<std::byte*> place(plan.values.size(), nullptr);
    const auto read = [&](std::uint32_t v, const char* name) {
      const Bytes& bytes = values[v];
      if (!place[v]) place[v] = add(name, kMapAlign, bytes.data(), bytes.size(), bytes.size() + kReadSlack);
    };
    const auto write = [&](std::uint32_t v, const char* name) {
      const std::size_t bytes = plan.values[v].bytes();
      place[v] = add(name, kMapAlign, nullptr, bytes, bytes);
    };
    read(step.in, "its input");
    if (residual) read(step.residual, "its residual");
    if (shared) place[step.out] = place[step.residual];
    if (out && !shared) write(step.out, "its output");
    if (step.bits != kAbsent) write(step.bits, "its bits");
    args_ = plan.bind(step, [&](std::uint32_t v) { return place[v]; });

    const std::size_t packed = step.kernel->packed_bytes(args_.shape);
    if (args_.weights) args_.weights = add("its weights", kAlign, args_.weights, packed, packed);
    for (int which = 0; which < kConstantCount; ++which) place_constant(plan, Constant(which));
    if (args_.border.base) place_border();
    const std::size_t scratch = step.kernel->scratch_bytes(args_.shape);
    scratch_ = add("its scratch", kAlign, nullptr, scratch, scratch);
  }

  // Calls the kernel for ranges of `split` pixels (0: all at once), and then also for every 64 channels, if it has
  // weights.
  void run(std::int64_t split) {
    const Shape& s = args_.shape;
    const std::int64_t pixels = std::int64_t(s.out_h) * s.out_w, range = split > 0 ? split : pixels;
    const int block = split > 0 && step_.traits->is(kWeights) ? 64 : s.out_c;
    for (args_.first_channel = 0; args_.first_channel < s.out_c; args_.first_channel = args_.last_channel) {
      args_.last_channel = std::min(args_.first_channel + block, s.out_c);
      for (std::int64_t begin = 0; begin < pixels; begin += range) {
        step_.kernel->run(args_, begin, std::min(begin + range, pixels), scratch_);
      }
    }
  }

  // The name of a buffer outside of which something was written; null if there is none.
  const char* overwritten() const {
    for (const Part& part : parts_) {
      const std::byte* data = part.block.data();
      const auto changed = [&](std::byte b) { return b != std::byte(options_.pattern); };
      if (!part.block.intact() || std::any_of(data + part.bytes, data + part.end, changed)) return part.name.c_str();
    }
    return nullptr;
  }

  // What was written.
  void take(const Plan& plan, std::vector<Bytes>* values) const {
    const auto copy = [&](std::uint32_t v, const void* from) {
      const auto* bytes = static_cast<const std::byte*>(from);
      if (v != kAbsent) (*values)[v].assign(bytes, bytes + plan.values[v].bytes());
    };
    copy(step_.out, args_.out.data);
    copy(step_.bits, args_.bits);
  }

  const std::deque<Part>& parts() const { return parts_; }

 private:
  static constexpr std::size_t kMapAlign = 8;  // of the largest element; kernels.h promises no more

  std::byte* add(const std::string& name, std::size_t align, const void* from, std::size_t bytes, std::size_t end) {
    parts_.emplace_back(name, bytes, end, align, options_);
    std::byte* to = parts_.back().block.data();
    if (from && bytes) std::memcpy(to, from, bytes);
    return to;
  }

  // `rows` rows of padded channels, of which the first `count` exist.
  template <typename T>
  const T* add_rows(const char* name, const T* from, std::size_t rows, std::size_t count, std::size_t width) {
    const std::size_t stride = std::size_t(padded_channels(int(count))) * width;
    std::byte* to = add(name, kAlign, nullptr, rows * stride, rows * stride);
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(to + row * stride, reinterpret_cast<const std::byte*>(from) + row * stride, count * width);
    }
    return reinterpret_cast<const T*>(to);
  }

  void place_constant(const Plan& plan, Constant which) {
    if (!args_.constants[which]) return;
    const Constant owner = which == kWindow ? kScale : which == kPositive ? kSlope : which;
    const auto need = constant_need(*step_.traits, plan.numerics, args_.wide, args_.act, owner);
    check(need.has_value(), "op '", step_.name, "' has a constant ", which, " that it must not have");
    constexpr std::size_t kWidths[] = {4, 8, 0, 2, 4, 4, 0};  // by Dtype; u8 come as int32
    const bool one = owner == kScale && need->dtype == Dtype::kF32, table = owner == kSlope && args_.act == Act::kTable;
    const std::size_t count = one ? 1 : table ? 257 : std::size_t(args_.shape.out_c);
    const auto* from = static_cast<const std::byte*>(args_.constants[which]);
    const std::string name = text("its ", which == kWindow     ? "window scale"
                                          : which == kPositive ? "positive slope"
                                                               : kConstantNames[which]);
    args_.constants[which] = add_rows(name.c_str(), from, 1, count, kWidths[std::size_t(need->dtype)]);
  }

  void place_border() {
    Border& b = args_.border;
    const Shape& s = args_.shape;
    const std::size_t out_h = std::size_t(s.out_h), out_w = std::size_t(s.out_w), out_c = std::size_t(s.out_c);
    std::size_t classes = 1;
    if (b.row_class && b.col_class) {
      classes += std::size_t(*std::max_element(b.row_class, b.row_class + out_h));
      classes += std::size_t(*std::max_element(b.col_class, b.col_class + out_w));
      b.row_class = copy("its classes of rows", b.row_class, out_h);
      b.col_class = copy("its classes of columns", b.col_class, out_w);
    }
    b.base = add_rows("its border terms", b.base, classes, out_c, sizeof *b.base);
    if (b.outside) b.outside = add_rows("its terms of taps outside", b.outside, classes, out_c, sizeof *b.outside);
    if (b.window) b.window = copy("its window terms", b.window, 2 * classes);
  }

  template <typename T>
  const T* copy(const char* name, const T* from, std::size_t count) {
    return reinterpret_cast<const T*>(add(name, alignof(T), from, count * sizeof(T), count * sizeof(T)));
  }

  const Step& step_;
  const typename Block::Options options_;
  KernelArgs args_;
  std::deque<Part> parts_;
  void* scratch_ = nullptr;
};

}  // namespace ovsw
