// A `.bnn` file taken apart and put together again, for mutations. Reading forgives whatever it can; what is written
// has the right sizes, offsets, padding and checksum, and each tensor belongs to the one op that refers to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/format/file.h"
#include "kernels/kernels.h"

namespace ovsw::fuzz {

struct Tensor {
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint32_t> shape{1};
  std::string data;

  // Takes this type and shape: as many of its bytes as fit, over and over. Numbers become finite, tail bits zero.
  void reshape(Dtype to, std::vector<std::uint32_t> shape);

  std::size_t elements() const;  // bits: words
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data.data());
  }
};

struct OpFields {
  std::string name;
  std::uint16_t kind = 7, activation = 0;
  std::uint32_t input = 0, residual = kAbsent, out = kAbsent, bits = kAbsent;
  std::optional<Tensor> weight, constants[5];  // by Constant, up to kThreshold
  float clamp_lo = 0, clamp_hi = 0;
  std::uint16_t window_h = 1, window_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  std::uint32_t padding = 0;  // two numbers of channels, or an f32
  std::uint8_t gap_h = 0, gap_w = 0;
  std::uint16_t flags = 0;

  std::uint16_t channels_before() const { return std::uint16_t(padding); }
  std::uint16_t channels_after() const { return std::uint16_t(padding >> 16); }
};

struct Document {
  std::uint16_t minor = 2;
  std::uint32_t numerics = 0;
  Tensor mean, std;
  std::vector<std::uint32_t> outputs;
  std::vector<ValueRecord> values;
  std::vector<OpFields> ops;
  std::string metadata;
};

// Nothing if these bytes are too far from a file.
std::optional<Document> read_document(const std::uint8_t* data, std::size_t size);

std::string write_document(const Document& document);

// Bytes that are to stay as they are, but for size and checksum.
void repair_checksum(std::uint8_t* data, std::size_t size);

}  // namespace ovsw::fuzz
