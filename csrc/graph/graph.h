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

struct Value {
  bool bits;
  int c, h, w;

  std::size_t pixels() const { return std::size_t(h) * std::size_t(w); }
  std::size_t bytes() const {
    return pixels() * (bits ? (std::size_t(c) + 63) / 64 * sizeof(std::uint64_t) : std::size_t(c) * sizeof(float));
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

  double macs() const;
};

struct Graph {
  std::vector<Value> values;  // values[0] is the input
  std::vector<Op> ops;        // in order of execution; every value is written once, before it is read
  std::uint32_t output;
  std::vector<float> mean, std;  // per input channel
};

// Throws InvalidError naming the op. Pointers refer to the file's bytes.
Graph build_graph(const File& file);

}  // namespace ovsw
