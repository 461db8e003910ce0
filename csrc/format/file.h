// The `.bnn` container: bytes in, tables and tensor views out. docs/format.md is the specification.
//
// All fields are checked here before they are used: counts, limits, references, offsets, alignment, padding, checksum.
// The meaning of the ops is checked by csrc/graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ovsw {

constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;

enum class Dtype : std::uint16_t { kF32 = 0, kF64 = 1, kBits = 2, kI16 = 3, kI32 = 4, kU8 = 5, kI8 = 6 };

struct ValueRecord {
  std::uint32_t kind, c, h, w;
};

struct TensorView {
  Dtype dtype;
  std::vector<std::uint32_t> shape;
  const std::byte* data;  // into the file's bytes
  std::size_t bytes;
};

struct OpRecord {
  std::string name;
  std::uint16_t kind, activation;
  std::uint32_t input, residual, out, bits, weight, scale, offset, slope, shift, threshold;
  float clamp_lo, clamp_hi;
  std::uint16_t window_h, window_w, stride_h, stride_w, pad_h, pad_w;
  std::uint16_t channels_before, channels_after;
  float pad_value;  // the same bytes as channels_before and channels_after: an op uses one or the other
  std::uint8_t gap_h, gap_w;
  bool ceil, exclude_pad;
};

struct File {
  std::uint16_t major, minor;
  Numerics numerics;
  std::uint32_t mean, std;
  std::vector<std::uint32_t> outputs;
  std::vector<ValueRecord> values;
  std::vector<TensorView> tensors;
  std::vector<OpRecord> ops;
  std::string metadata;
};

// Parses and checks. `data` must be aligned to 8 bytes and outlive the views. Throws InvalidError.
File parse_file(const std::byte* data, std::size_t size);

// The end of an error message if the file is intact but of a newer minor version, which may be the reason; else "".
std::string newer_version(const std::byte* data, std::size_t size);

}  // namespace ovsw
