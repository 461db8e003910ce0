// The network of a file as typed ops with checked shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/format/file.h"
#include "csrc/graph/ops.h"
#include "kernels/kernels.h"

namespace ovsw {

struct Value {
  Element kind;
  int c, h, w;

  std::size_t pixels() const { return std::size_t(h) * std::size_t(w); }
  std::size_t elements() const { return pixels() * std::size_t(c); }
  std::size_t bytes() const {
    constexpr std::size_t kBytes[] = {4, 0, 2, 4, 1};  // of an element; bits come in words
    const std::size_t channels = std::size_t(c), words = (channels + 63) / 64;
    return pixels() * (kind == Element::kBits ? words * sizeof(std::uint64_t) : channels * kBytes[std::size_t(kind)]);
  }
};

// Values are referred to by index, kAbsent if absent; tensors belong to the file, null if absent.
struct Op {
  const OpTraits* traits;
  Core core;
  std::string name;
  std::uint32_t input, residual, out, bits;
  bool on_pixels;
  bool wide;         // computes in 32 bits: its out is an i32, or its threshold
  bool per_channel;  // the residual is one pixel that is used for all pixels
  Shape shape;       // of a flat op: the input taken as one pixel of h * w * c channels
  int channels_before;
  float pad_value;
  bool exclude_pad;
  Act act;
  float clamp_lo, clamp_hi;
  const TensorView* weight;
  const TensorView* constants[kConstantCount];  // kWindow and kPositive are rows of others, and null here

  std::size_t taps() const { return std::size_t(shape.window_h) * std::size_t(shape.window_w); }
  // A tensor's elements; T is its dtype.
  template <typename T>
  const T* weights() const {
    return reinterpret_cast<const T*>(weight->data);
  }
  template <typename T>
  const T* constant(Constant which) const {
    if (which == kWindow || which == kPositive) {
      const TensorView* t = constants[which == kWindow ? kScale : kSlope];
      return t && t->shape.size() > 1 ? reinterpret_cast<const T*>(t->data) + t->shape[1] : nullptr;
    }
    return constants[which] ? reinterpret_cast<const T*>(constants[which]->data) : nullptr;
  }
  // Integer numerics, real weights: the value of weight i. On pixels an int8 is the upper byte of 16 bits.
  std::int16_t int_weight(std::size_t i) const {
    if (weight->dtype == Dtype::kI16) return weights<std::int16_t>()[i];
    return std::int16_t(weights<std::int8_t>()[i] * (on_pixels ? 256 : 1));
  }
  // Integer numerics: the scale of channel c, or with kWindow the second one. That of a wide bconv has 32 bits.
  std::int64_t int_scale(int c, Constant row = kScale) const {
    if (constants[kScale]->dtype == Dtype::kI32) return constant<std::int32_t>(row)[c];
    return constant<std::int16_t>(row)[c];
  }
  double macs() const;
  // What a run costs, roughly in multiply-adds: a tap of a pool is one, an exponential sixteen.
  double work() const;
};

struct Graph {
  Numerics numerics;
  std::vector<Value> values;  // values[0] is the input
  std::vector<Op> ops;        // in order of execution; every value is written once, before it is read
  std::vector<std::uint32_t> outputs;
  std::vector<float> mean, std;  // per input channel

  // Integer numerics: the zero of an input channel in steps of 1/256 of a pixel value.
  std::int64_t zero(int channel) const;
};

// Throws InvalidError naming the op. Pointers refer to the file and its bytes. The values `given` exist before the
// first op: the input, and in tests others.
Graph build_graph(const File& file, const std::vector<std::uint32_t>& given = {0});

}  // namespace ovsw
