// libFuzzer's mutations of `.bnn` files: byte by byte, three of four among the numbers of the tensors, so that many
// mutants run; then the size and, mostly, the checksum are made right, which no mutation would meet by chance. Graphs
// of every shape come from `campaigns.fuzz`: random models of tests/support/graphs.py.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "csrc/base/crc32.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

constexpr std::size_t kHeader = 64;

// Where header, tables, names and metadata end, as the header says it.
std::size_t tables_end(const std::uint8_t* data) {
  std::uint32_t counts[6];  // bytes of the header; values, tensors, ops; bytes of names and metadata
  std::memcpy(counts, data + 24, sizeof counts);
  constexpr std::size_t kBytes[] = {1, 16, 40, 80, 1, 1};
  std::size_t end = 0;
  for (std::size_t i = 0; i < 6; ++i) end += kBytes[i] * counts[i];
  return end;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  const std::size_t tables = size < kHeader ? size : tables_end(data);
  if (seed % 4 != 0 && tables < size) {
    LLVMFuzzerMutate(data + tables, size - tables, size - tables);
  } else {
    size = LLVMFuzzerMutate(data, size, max_size);
  }
  if (size < kHeader || seed % 20 == 0) return size;
  const std::uint64_t bytes = size;
  std::memcpy(data + 16, &bytes, sizeof bytes);
  const std::uint32_t sum = ovsw::crc32(ovsw::crc32(0, data, 12), data + 16, size - 16);
  std::memcpy(data + 12, &sum, sizeof sum);
  return size;
}
