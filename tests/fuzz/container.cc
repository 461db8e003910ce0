#include "tests/fuzz/container.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "csrc/base/crc32.h"

namespace ovsw::fuzz {
namespace {

constexpr char kMagic[] =
    "\x89"
    "BNN\r\n\x1a\n";
constexpr std::size_t kHeader = 64, kValue = 16, kTensor = 40, kOp = 80, kMost = 1 << 20;

template <typename T>
T get(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::size_t width(Dtype dtype) {
  constexpr std::size_t kWidths[] = {4, 8, 8, 2, 4, 1, 1};
  return kWidths[std::size_t(dtype)];
}

template <typename T>
void make_finite(std::string& data) {
  for (std::size_t at = 0; at + sizeof(T) <= data.size(); at += sizeof(T)) {
    T x;
    std::memcpy(&x, &data[at], sizeof x);
    if (!std::isfinite(x)) x = T(0.5);
    std::memcpy(&data[at], &x, sizeof x);
  }
}

Tensor read_tensor(const std::uint8_t* record, const std::uint8_t* data, std::size_t size) {
  Tensor t;
  t.dtype = Dtype(std::min<std::uint16_t>(get<std::uint16_t>(record), 6));
  const std::size_t rank = std::clamp<std::size_t>(get<std::uint16_t>(record + 2), 1, 4);
  std::vector<std::uint32_t> shape;
  for (std::size_t d = 0; d < rank; ++d) shape.push_back(get<std::uint32_t>(record + 4 + 4 * d));
  const auto offset = get<std::uint64_t>(record + 24), length = get<std::uint64_t>(record + 32);
  if (offset < size) t.data.assign(reinterpret_cast<const char*>(data + offset), std::min(length, size - offset));
  t.reshape(t.dtype, shape);
  return t;
}

}  // namespace

std::size_t Tensor::elements() const {
  std::size_t count = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    count *= dtype == Dtype::kBits && d + 1 == shape.size() ? (shape[d] + 63) / 64 : shape[d];
  }
  return count;
}

void Tensor::reshape(Dtype to, std::vector<std::uint32_t> wanted) {
  dtype = to;
  shape = std::move(wanted);
  for (std::uint32_t& d : shape) d = std::clamp<std::uint32_t>(d, 1, kMost);
  while (elements() * width(dtype) > kMost) *std::max_element(shape.begin(), shape.end()) /= 2;
  const std::size_t bytes = elements() * width(dtype), had = data.size();
  data.resize(bytes);
  for (std::size_t i = had; i < bytes; ++i) data[i] = had ? data[i - had] : 0;
  if (dtype == Dtype::kF32) make_finite<float>(data);
  if (dtype == Dtype::kF64) make_finite<double>(data);
  if (dtype == Dtype::kBits && shape.back() % 64 != 0) {
    const std::size_t row = (shape.back() + 63) / 64;
    for (std::size_t w = row; w <= elements(); w += row) {
      as<std::uint64_t>()[w - 1] &= (std::uint64_t(1) << shape.back() % 64) - 1;
    }
  }
}

std::optional<Document> read_document(const std::uint8_t* data, std::size_t size) {
  if (size < kHeader || std::memcmp(data, kMagic, 8) != 0) return {};
  Document d;
  d.minor = get<std::uint16_t>(data + 10);
  const auto header = get<std::uint32_t>(data + 24), values = get<std::uint32_t>(data + 28);
  const auto tensors = get<std::uint32_t>(data + 32), ops = get<std::uint32_t>(data + 36);
  const auto strings = get<std::uint32_t>(data + 40), metadata = get<std::uint32_t>(data + 44);
  if (header < kHeader || values == 0 || header > size || values > size || tensors > size || ops > size) return {};
  const std::size_t at_tensors = header + kValue * values, at_ops = at_tensors + kTensor * tensors;
  const std::size_t at_strings = at_ops + kOp * ops, end = at_strings + std::size_t(strings) + metadata;
  if (end > size) return {};
  d.numerics = get<std::uint32_t>(data + 60) & 1;
  d.outputs = {get<std::uint32_t>(data + 48)};
  for (std::size_t at = kHeader; at + 4 <= header; at += 4) d.outputs.push_back(get<std::uint32_t>(data + at));
  const auto tensor = [&](std::uint32_t i) -> std::optional<Tensor> {
    if (i >= tensors) return {};
    return read_tensor(data + at_tensors + kTensor * i, data, size);
  };
  d.mean = tensor(get<std::uint32_t>(data + 52)).value_or(Tensor());
  d.std = tensor(get<std::uint32_t>(data + 56)).value_or(Tensor());
  for (std::size_t i = 0; i < values; ++i) d.values.push_back(get<ValueRecord>(data + header + kValue * i));
  for (std::size_t i = 0; i < ops; ++i) {
    const std::uint8_t* at = data + at_ops + kOp * i;
    OpFields op;
    op.kind = get<std::uint16_t>(at);
    op.activation = get<std::uint16_t>(at + 2);
    const auto name = get<std::uint32_t>(at + 4), length = get<std::uint32_t>(at + 8);
    if (name < strings) {
      op.name.assign(reinterpret_cast<const char*>(data + at_strings + name), std::min(length, strings - name));
    }
    std::uint32_t* refs[] = {&op.input, &op.residual, &op.out, &op.bits};
    for (std::size_t r = 0; r < 4; ++r) *refs[r] = get<std::uint32_t>(at + 12 + 4 * r);
    op.weight = tensor(get<std::uint32_t>(at + 28));
    for (std::size_t r = 0; r < 3; ++r) op.constants[r] = tensor(get<std::uint32_t>(at + 32 + 4 * r));
    op.clamp_lo = get<float>(at + 44);
    op.clamp_hi = get<float>(at + 48);
    std::uint16_t* sides[] = {&op.window_h, &op.window_w, &op.stride_h, &op.stride_w, &op.pad_h, &op.pad_w};
    for (std::size_t r = 0; r < 6; ++r) *sides[r] = get<std::uint16_t>(at + 52 + 2 * r);
    op.padding = get<std::uint32_t>(at + 64);
    if (d.numerics == 1) op.constants[kShift] = tensor(get<std::uint32_t>(at + 68));
    op.constants[kThreshold] = tensor(get<std::uint32_t>(at + 72) - 1);
    op.gap_h = at[76];
    op.gap_w = at[77];
    op.flags = get<std::uint16_t>(at + 78);
    d.ops.push_back(std::move(op));
  }
  d.metadata.assign(reinterpret_cast<const char*>(data + at_strings + strings), metadata);
  return d;
}

std::string write_document(const Document& d) {
  std::vector<const Tensor*> tensors;
  const auto ref = [&](const std::optional<Tensor>& t) {
    if (!t) return kAbsent;
    tensors.push_back(&*t);
    return std::uint32_t(tensors.size() - 1);
  };
  tensors = {&d.mean, &d.std};
  std::string ops, strings, values, records, file;
  for (const OpFields& op : d.ops) {
    put(ops, op.kind);
    put(ops, op.activation);
    put(ops, std::uint32_t(strings.size()));
    put(ops, std::uint32_t(op.name.size()));
    strings += op.name;
    for (std::uint32_t v : {op.input, op.residual, op.out, op.bits, ref(op.weight)}) put(ops, v);
    for (Constant which : {kScale, kOffset, kSlope}) put(ops, ref(op.constants[which]));
    put(ops, op.clamp_lo);
    put(ops, op.clamp_hi);
    for (std::uint16_t n : {op.window_h, op.window_w, op.stride_h, op.stride_w, op.pad_h, op.pad_w}) put(ops, n);
    put(ops, op.padding);
    put(ops, d.numerics == 1 ? ref(op.constants[kShift]) : 0);
    put(ops, ref(op.constants[kThreshold]) + 1);
    put(ops, op.gap_h);
    put(ops, op.gap_w);
    put(ops, op.flags);
  }
  for (const ValueRecord& v : d.values) {
    for (std::uint32_t n : {v.kind, v.c, v.h, v.w}) put(values, n);
  }
  const std::size_t more = d.outputs.empty() ? 0 : d.outputs.size() - 1;
  const std::size_t tables = kHeader + 4 * more + values.size() + kTensor * tensors.size() + ops.size();
  const auto align = [](std::size_t n) { return (n + 63) / 64 * 64; };
  std::size_t end = tables + strings.size() + d.metadata.size();
  for (const Tensor* t : tensors) {
    put(records, std::uint16_t(t->dtype));
    put(records, std::uint16_t(t->shape.size()));
    for (std::size_t i = 0; i < 4; ++i) put(records, i < t->shape.size() ? t->shape[i] : 0);
    put(records, std::uint32_t(0));
    put(records, std::uint64_t(align(end)));
    put(records, std::uint64_t(t->data.size()));
    end = align(end) + t->data.size();
  }
  file.assign(kMagic, 8);
  put(file, std::uint16_t(1));
  put(file, d.minor);
  put(file, std::uint32_t(0));
  put(file, std::uint64_t(end));
  put(file, std::uint32_t(kHeader + 4 * more));
  for (std::size_t n : {d.values.size(), tensors.size(), d.ops.size(), strings.size(), d.metadata.size()}) {
    put(file, std::uint32_t(n));
  }
  put(file, d.outputs.empty() ? 0 : d.outputs[0]);
  put(file, std::uint32_t(0));
  put(file, std::uint32_t(1));
  put(file, d.numerics);
  for (std::size_t i = 1; i <= more; ++i) put(file, d.outputs[i]);
  file += values + records + ops + strings + d.metadata;
  for (const Tensor* t : tensors) {
    file.resize(align(file.size()), '\0');
    file += t->data;
  }
  repair_checksum(reinterpret_cast<std::uint8_t*>(file.data()), file.size());
  return file;
}

void repair_checksum(std::uint8_t* data, std::size_t size) {
  if (size < kHeader) return;
  const std::uint64_t bytes = size;
  std::memcpy(data + 16, &bytes, sizeof bytes);
  const std::uint32_t crc = crc32(crc32(0, data, 12), data + 16, size - 16);
  std::memcpy(data + 12, &crc, sizeof crc);
}

}  // namespace ovsw::fuzz
