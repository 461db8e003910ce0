// The network as typed ops with checked shapes: what the file means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/format/file.h"
#include "kernels/kernels.h"

namespace ovsw {

enum class OpKind : std::uint16_t {
  kBconv = 1,
  kConv = 2,
  kLinear = 3,
  kMaxpool = 4,
  kAvgpool = 5,
  kChannelPad = 6,
  kEltwise = 7,
};

const char* op_name(OpKind kind);

enum class ValueKind : std::uint32_t { kMap = 0, kBits = 1, kI16 = 2, kI32 = 3, kU8 = 4 };

const char* kind_name(ValueKind kind);

struct Value {
  ValueKind kind;
  int c, h, w;

  std::size_t pixels() const { return std::size_t(h) * std::size_t(w); }
  std::size_t bytes() const {
    constexpr std::size_t kElementBytes[] = {sizeof(float), 0, 2, 4, 1};
    const bool bits = kind == ValueKind::kBits;
    const std::size_t channels = std::size_t(c);
    return pixels() *
           (bits ? (channels + 63) / 64 * sizeof(std::uint64_t) : channels * kElementBytes[std::size_t(kind)]);
  }
};

// References to values are indices, kAbsent if absent; tensors are typed pointers into the file, null if absent.
struct Op {
  OpKind kind;
  std::string name;
  std::uint32_t input, residual, out_map, out_bits;
  Shape shape;  // for kLinear: the input taken as one pixel of h * w * c channels
  int channels_before;
  Act act;
  float clamp_lo, clamp_hi;
  const float* slope;
  const double* scale;
  const double* offset;
  const float* weight;               // kConv, kLinear
  const std::uint64_t* weight_bits;  // kBconv

  // Integer numerics.
  const std::int16_t* mult;
  const std::int32_t* int_offset;
  const std::uint8_t* shift;
  const std::int16_t* weight_i16;  // kConv, kLinear: one of the two
  const std::int8_t* weight_i8;
  float logit_scale;  // kLinear

  // What weight i counts: over pixels an int8 is the upper byte of 16 bits.
  std::int16_t int_weight(std::size_t i) const {
    if (weight_i16) return weight_i16[i];
    return std::int16_t(weight_i8[i] * (kind == OpKind::kConv && input == 0 ? 256 : 1));
  }
  double macs() const;
};

struct Graph {
  Numerics numerics;
  std::vector<Value> values;  // values[0] is the input
  std::vector<Op> ops;        // in order of execution; every value is written once, before it is read
  std::uint32_t output;
  std::vector<float> mean, std;  // per input channel

  // Integer numerics: the zero of an input channel in steps of 1/256 of a pixel value.
  std::int64_t zero(int channel) const;
};

// Throws InvalidError naming the op. Pointers refer to the file's bytes.
Graph build_graph(const File& file);

}  // namespace ovsw
