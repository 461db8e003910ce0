#include "csrc/format/file.h"

#include <algorithm>
#include <cstring>

#include "csrc/base/buffer.h"
#include "csrc/base/crc32.h"
#include "csrc/base/error.h"
#include "csrc/base/utf8.h"

namespace ovsw {
namespace {

constexpr unsigned char kMagic[8] = {0x89, 'B', 'N', 'N', '\r', '\n', 0x1A, '\n'};
constexpr std::uint16_t kMajor = 1, kMinor = 3;  // the newest version that this reader knows
constexpr std::size_t kHeaderBytes = 64, kValueBytes = 16, kTensorBytes = 40, kOpBytes = 80;
constexpr std::uint32_t kMaxCount = 16384, kMaxDim = 1u << 20, kMaxOutputs = 1024;
constexpr std::uint32_t kMaxStrings = 1u << 22, kMaxMetadata = 1u << 24, kMaxName = 255;

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the loader copies little-endian fields as they are"
#endif

constexpr unsigned kCeil = 1, kExcludePad = 2;  // flags of an op

// Reads fields one after another from a record whose bounds were checked.
class Fields {
 public:
  explicit Fields(const std::byte* at) : at_(at) {}

  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

 private:
  const std::byte* at_;
};

ValueRecord parse_value(std::size_t i, const std::byte* at) {
  Fields f(at);
  ValueRecord v{};
  v.kind = f.take<std::uint32_t>();
  v.c = f.take<std::uint32_t>();
  v.h = f.take<std::uint32_t>();
  v.w = f.take<std::uint32_t>();
  for (std::uint32_t dim : {v.c, v.h, v.w}) {
    check(dim >= 1 && dim <= kMaxDim, "value ", i, ": shape (", v.c, ", ", v.h, ", ", v.w, "), expected 1 to ", kMaxDim,
          " each");
  }
  return v;
}

// The size in bytes of a tensor, or 0 if it is larger than `limit`.
std::size_t tensor_bytes(Dtype dtype, const std::vector<std::uint32_t>& shape, std::size_t limit) {
  constexpr std::size_t kElementBytes[] = {4, 8, 8, 2, 4, 1, 1};  // by dtype; bits are words
  std::size_t bytes = kElementBytes[std::size_t(dtype)];
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const bool words = dtype == Dtype::kBits && d + 1 == shape.size();
    bytes *= words ? (std::size_t(shape[d]) + 63) / 64 : shape[d];
    if (bytes > limit) return 0;
  }
  return bytes;
}

void check_tail_bits(std::size_t i, const TensorView& t) {
  const std::uint32_t channels = t.shape.back();
  if (channels % 64 == 0) return;
  const std::size_t row = (std::size_t(channels) + 63) / 64 * 8;
  for (std::size_t at = row; at <= t.bytes; at += row) {
    std::uint64_t word;
    std::memcpy(&word, t.data + at - 8, 8);
    check(word >> (channels % 64) == 0, "tensor ", i, ": bits past the last channel are not zero");
  }
}

// `end` is the end of the previous section; it is set to the end of this tensor.
TensorView parse_tensor(std::size_t i, const std::byte* at, const std::byte* file, std::size_t size, std::size_t* end) {
  Fields f(at);
  TensorView t{};
  const auto dtype = f.take<std::uint16_t>();
  const auto rank = f.take<std::uint16_t>();
  check(dtype <= std::uint16_t(Dtype::kI8), "tensor ", i, ": dtype ", dtype, " is unknown");
  check(rank >= 1 && rank <= 4, "tensor ", i, ": rank ", rank, ", expected 1 to 4");
  t.dtype = Dtype(dtype);
  for (std::uint16_t d = 0; d < 4; ++d) {
    const auto dim = f.take<std::uint32_t>();
    if (d < rank) {
      check(dim >= 1 && dim <= kMaxDim, "tensor ", i, ": dimension ", d, " is ", dim, ", expected 1 to ", kMaxDim);
      t.shape.push_back(dim);
    } else {
      check(dim == 0, "tensor ", i, ": dimension ", d, " is ", dim, " past rank ", rank);
    }
  }
  check(f.take<std::uint32_t>() == 0, "tensor ", i, ": reserved bytes are not zero");
  const auto offset = f.take<std::uint64_t>();
  const auto length = f.take<std::uint64_t>();
  const std::size_t expected = tensor_bytes(t.dtype, t.shape, size);
  check(expected != 0, "tensor ", i, ": its shape is larger than the file");
  check(length == expected, "tensor ", i, ": length ", length, ", its shape takes ", expected);
  check(offset == align_up(*end), "tensor ", i, ": offset ", offset, ", expected ", align_up(*end));
  check(offset <= size && length <= size - offset, "tensor ", i, ": ends past the file");
  for (std::size_t b = *end; b < offset; ++b) {
    check(file[b] == std::byte{0}, "tensor ", i, ": the padding before it is not zero");
  }
  t.data = file + offset;
  t.bytes = expected;
  *end = offset + length;
  if (t.dtype == Dtype::kBits) check_tail_bits(i, t);
  return t;
}

// UTF-8 without control characters.
bool is_printable(const std::string& name) {
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  return is_utf8(name) && std::none_of(name.begin(), name.end(), control);
}

OpRecord parse_op(std::size_t i, const std::byte* at, const std::string& strings, std::uint32_t values,
                  std::uint32_t tensors, Numerics numerics) {
  Fields f(at);
  OpRecord op{};
  op.kind = f.take<std::uint16_t>();
  op.activation = f.take<std::uint16_t>();
  const auto name_at = f.take<std::uint32_t>();
  const auto name_size = f.take<std::uint32_t>();
  check(name_at <= strings.size() && name_size <= strings.size() - name_at, "op ", i,
        ": name lies outside the strings");
  check(name_size <= kMaxName, "op ", i, ": name has ", name_size, " bytes, expected at most ", kMaxName);
  op.name = strings.substr(name_at, name_size);
  check(is_printable(op.name), "op ", i, ": name is not printable UTF-8");

  const auto ref = [&](const char* field, const char* to, std::uint32_t count) {
    const auto index = f.take<std::uint32_t>();
    check(index == kAbsent || index < count, "op ", i, " '", op.name, "': ", field, " refers to ", to, " ", index,
          ", the file has ", count);
    return index;
  };
  op.input = ref("input", "value", values);
  op.residual = ref("residual", "value", values);
  op.out = ref("out", "value", values);
  op.bits = ref("bits", "value", values);
  op.weight = ref("weight", "tensor", tensors);
  op.scale = ref("scale", "tensor", tensors);
  op.offset = ref("offset", "tensor", tensors);
  op.slope = ref("slope", "tensor", tensors);
  op.clamp_lo = f.take<float>();
  op.clamp_hi = f.take<float>();
  for (std::uint16_t* field : {&op.window_h, &op.window_w, &op.stride_h, &op.stride_w, &op.pad_h, &op.pad_w,
                               &op.channels_before, &op.channels_after}) {
    *field = f.take<std::uint16_t>();
  }
  const std::uint16_t padding[] = {op.channels_before, op.channels_after};
  std::memcpy(&op.pad_value, padding, sizeof op.pad_value);
  const bool shifts = numerics == Numerics::kInteger;
  op.shift = shifts ? ref("shift", "tensor", tensors) : kAbsent;
  const bool no_shift = shifts || f.take<std::uint32_t>() == 0;
  const auto threshold = f.take<std::uint32_t>();  // its number plus 1
  check(threshold <= tensors, "op ", i, " '", op.name, "': threshold refers to tensor ", threshold - 1,
        ", the file has ", tensors);
  op.threshold = threshold ? threshold - 1 : kAbsent;
  op.gap_h = f.take<std::uint8_t>();
  op.gap_w = f.take<std::uint8_t>();
  const auto flags = f.take<std::uint16_t>();
  check(no_shift && flags <= (kCeil | kExcludePad), "op ", i, " '", op.name, "': reserved bytes are not zero");
  op.ceil = (flags & kCeil) != 0;
  op.exclude_pad = (flags & kExcludePad) != 0;
  check(op.input != kAbsent, "op ", i, " '", op.name, "': no input");
  return op;
}

bool has_checksum(std::uint32_t crc, const std::byte* data, std::size_t size) {
  return crc == crc32(crc32(0, data, 12), data + 16, size - 16);
}

}  // namespace

std::string newer_version(const std::byte* data, std::size_t size) {
  if (size < kHeaderBytes) return "";
  Fields f(data + sizeof kMagic);
  const auto major = f.take<std::uint16_t>();
  const auto minor = f.take<std::uint16_t>();
  if (major != kMajor || minor <= kMinor || !has_checksum(f.take<std::uint32_t>(), data, size)) return "";
  return text("; the file is of format version ", major, ".", minor, ", this reader knows ", kMajor, ".", kMinor,
              ": install a newer ovsw");
}

File parse_file(const std::byte* data, std::size_t size) {
  check(size >= sizeof kMagic && std::memcmp(data, kMagic, sizeof kMagic) == 0,
        "not a .bnn file (magic number missing)");
  check(size >= kHeaderBytes, "truncated: ", size, " bytes, the header has ", kHeaderBytes);
  Fields f(data + sizeof kMagic);
  File file{};
  file.major = f.take<std::uint16_t>();
  file.minor = f.take<std::uint16_t>();
  const auto crc = f.take<std::uint32_t>();
  const auto file_size = f.take<std::uint64_t>();
  check(file.major == kMajor, "format version ", file.major, ".", file.minor, ", this reader knows ", kMajor, ".x",
        file.major > kMajor ? ": install a newer ovsw" : "");
  check(file_size == size, size < file_size ? "truncated: " : "too long: ", size,
        " bytes, header field file_size says ", file_size);
  check(has_checksum(crc, data, size), "checksum mismatch: the file is damaged");

  const auto header_size = f.take<std::uint32_t>();
  const auto value_count = f.take<std::uint32_t>();
  const auto tensor_count = f.take<std::uint32_t>();
  const auto op_count = f.take<std::uint32_t>();
  const auto strings_size = f.take<std::uint32_t>();
  const auto metadata_size = f.take<std::uint32_t>();
  const auto output = f.take<std::uint32_t>();
  file.mean = f.take<std::uint32_t>();
  file.std = f.take<std::uint32_t>();
  const auto numerics = f.take<std::uint32_t>();
  check(header_size % 4 == 0 && header_size >= kHeaderBytes && header_size < kHeaderBytes + 4 * kMaxOutputs,
        "header_size is ", header_size, ", expected ", kHeaderBytes, " and 4 for each further output");
  const auto check_count = [](const char* what, std::uint32_t n) {
    check(n >= 1 && n <= kMaxCount, what, " is ", n, ", expected 1 to ", kMaxCount);
  };
  check_count("value_count", value_count);
  check_count("tensor_count", tensor_count);
  check_count("op_count", op_count);
  check(strings_size <= kMaxStrings, "strings_size ", strings_size, " is over the limit of ", kMaxStrings);
  check(metadata_size <= kMaxMetadata, "metadata_size ", metadata_size, " is over the limit of ", kMaxMetadata);
  check(output < value_count, "header field output is ", output, ", the file has ", value_count, " values");
  check(file.mean < tensor_count, "header field mean is ", file.mean, ", the file has ", tensor_count, " tensors");
  check(file.std < tensor_count, "header field std is ", file.std, ", the file has ", tensor_count, " tensors");
  check(numerics <= std::uint32_t(Numerics::kInteger), "numerics ", numerics, " is unknown");
  file.numerics = Numerics(numerics);

  const std::size_t at_tensors = header_size + kValueBytes * value_count;
  const std::size_t at_ops = at_tensors + kTensorBytes * tensor_count;
  const std::size_t at_strings = at_ops + kOpBytes * op_count;
  const std::size_t at_metadata = at_strings + strings_size;
  std::size_t end = at_metadata + metadata_size;
  check(end <= size, "tables end at byte ", end, ", the file has ", size);

  file.outputs = {output};
  for (std::size_t at = kHeaderBytes; at < header_size; at += 4) {
    file.outputs.push_back(f.take<std::uint32_t>());
    check(file.outputs.back() < value_count, "output index ", file.outputs.back(), " is out of range: the file has ",
          value_count, " values");
  }
  std::vector<std::uint32_t> sorted = file.outputs;
  std::sort(sorted.begin(), sorted.end());
  check(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), "an output is named twice");
  for (std::size_t i = 0; i < value_count; ++i) {
    file.values.push_back(parse_value(i, data + header_size + kValueBytes * i));
  }
  for (std::size_t i = 0; i < tensor_count; ++i) {
    file.tensors.push_back(parse_tensor(i, data + at_tensors + kTensorBytes * i, data, size, &end));
  }
  check(end == size, "tensor data ends at byte ", end, ", the file has ", size);
  const auto* chars = reinterpret_cast<const char*>(data);
  const std::string strings(chars + at_strings, strings_size);
  for (std::size_t i = 0; i < op_count; ++i) {
    file.ops.push_back(parse_op(i, data + at_ops + kOpBytes * i, strings, value_count, tensor_count, file.numerics));
  }
  file.metadata.assign(chars + at_metadata, metadata_size);
  return file;
}

}  // namespace ovsw
