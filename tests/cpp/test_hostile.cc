// Damaged files through the C interface: every one is refused with a text or runs; none may crash or leak.

#include <cstdint>
#include <vector>

#include "check.h"
#include "ovsw.h"

namespace {

using Bytes = std::vector<unsigned char>;

// The plainest form of docs/format.md's checksum, so that damage gets past it.
void repair(Bytes* file) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (std::size_t i = 0; i < file->size(); ++i) {
    if (i >= 12 && i < 16) continue;
    crc ^= (*file)[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  for (std::size_t i = 0; i < 4; ++i) (*file)[12 + i] = static_cast<unsigned char>(~crc >> (8 * i));
}

// Whether it loads; then it also runs.
bool try_file(const Bytes& file) {
  ovsw_model* model = nullptr;
  const ovsw_status status = ovsw_load_memory(file.data(), file.size(), nullptr, &model);
  if (status != OVSW_OK) {
    CHECK(!model && strlen(ovsw_last_error()) > 10);
    CHECK(status == OVSW_INVALID_MODEL || status == OVSW_OUT_OF_MEMORY);
    return false;
  }
  const std::size_t size = ovsw_input_channels(model) * ovsw_input_height(model) * ovsw_input_width(model);
  if (size < 1 << 16) {
    const std::vector<unsigned char> pixels(size, 77);
    std::vector<float> logits(ovsw_output_count(model));
    CHECK(ovsw_run_pixels(model, 1, pixels.data(), size, logits.data(), logits.size()) == OVSW_OK);
  }
  for (std::size_t i = 0; i <= ovsw_output_count(model); ++i) (void)ovsw_label(model, i);
  CHECK(ovsw_metadata(model)[0]);
  ovsw_close(model);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  std::size_t size = 0;
  unsigned char* bytes = read_all(argv[1], "tiny.bnn", &size);
  const Bytes whole(bytes, bytes + size);
  std::free(bytes);
  Bytes same = whole;
  repair(&same);
  CHECK(same == whole && try_file(whole));

  for (std::size_t n = 1; n < size; ++n) {
    Bytes cut(whole.begin(), whole.begin() + std::ptrdiff_t(n));
    CHECK(!try_file(cut));
    if (n < 24) continue;
    for (std::size_t i = 0; i < 8; ++i) cut[16 + i] = static_cast<unsigned char>(n >> (8 * i));  // file_size
    repair(&cut);
    CHECK(!try_file(cut));
  }
  // Tables, names and metadata lie in the first part of the file; the rest is what tensors hold.
  int loaded = 0;
  for (std::size_t at = 0; at < size; ++at) {
    for (const int value : {0, 1, 0x7F, 0x80, 0xFF, int('"'), whole[at] ^ 1, whole[at] ^ 0x40}) {
      Bytes damaged = whole;
      damaged[at] = static_cast<unsigned char>(value);
      if (damaged == whole) continue;
      CHECK(!try_file(damaged) || (at >= 12 && at < 16));
      repair(&damaged);
      loaded += try_file(damaged);
    }
  }
  CHECK(loaded > 100);  // or the checksum is what refuses
}
