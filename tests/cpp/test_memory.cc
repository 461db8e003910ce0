// What ovsw_memory says is what the library allocates, byte by byte, and memory_limit is a limit of just that.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "check.h"
#include "ovsw.h"

namespace {

std::size_t allocated = 0;  // by aligned_alloc, which weights, borders, maps and scratch come from
long calls = 0;

}  // namespace

// Instead of the one that the library would get from libc.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  void* p = nullptr;
  allocated += size;
  ++calls;
  return posix_memalign(&p, alignment, size) == 0 ? p : nullptr;
}
// libstdc++ would have it from aligned_alloc: what the pool of threads keeps for each of them.
void* operator new(std::size_t size, std::align_val_t alignment) {
  void* p = nullptr;
  if (posix_memalign(&p, std::size_t(alignment), size) != 0) throw std::bad_alloc();
  return p;
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

void test(const char* folder, const char* name, int threads, const char* isa) {
  std::size_t size = 0;
  unsigned char* bytes = read_all(folder, name, &size);  // from malloc, so aligned: the library makes no copy
  ovsw_options options = OVSW_OPTIONS;
  options.threads = threads;
  options.isa = isa;
  ovsw_model* model = nullptr;
  const std::size_t before = allocated;
  const ovsw_status loaded = ovsw_load_memory(bytes, size, &options, &model);
  if (loaded == OVSW_UNSUPPORTED) return std::free(bytes);
  CHECK(loaded == OVSW_OK);
  const std::size_t pixels = ovsw_input_channels(model) * ovsw_input_height(model) * ovsw_input_width(model);
  const std::size_t count = ovsw_output_count(model), memory = ovsw_memory(model);
  const std::vector<std::uint8_t> image(pixels, 77);
  std::vector<float> logits(count);
  for (int i = 0; i < 3; ++i) {
    CHECK(ovsw_run_pixels(model, 1, image.data(), pixels, logits.data(), count) == OVSW_OK);
    CHECK(allocated - before + (pixels + 2 * count) * sizeof(float) == memory);
  }
  ovsw_close(model);

  options.memory_limit = memory;
  CHECK(ovsw_load_memory(bytes, size, &options, &model) == OVSW_OK);
  ovsw_close(model);
  options.memory_limit = memory - 1;
  const long calls_before = calls;
  CHECK(ovsw_load_memory(bytes, size, &options, &model) == OVSW_INVALID_MODEL && !model);
  CHECK(calls == calls_before);  // refused before anything is allocated
  const std::string needs = "needs " + std::to_string(memory) + " bytes of memory";
  CHECK(strstr(ovsw_last_error(), needs.c_str()) && strstr(ovsw_last_error(), "memory_limit"));
  CHECK(strstr(ovsw_last_error(), ("the limit is " + std::to_string(memory - 1)).c_str()));
  std::free(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  const std::filesystem::path folder = std::filesystem::path(argv[1]) / "../../python/ovsw/data/zoo";
  std::vector<std::string> networks;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".bnn") networks.push_back(entry.path().filename().string());
  }
  CHECK(!networks.empty());
  for (const int threads : {1, 2, 8}) {
    for (const char* isa : {"portable", "x86_avx2", "x86_avx512", "arm_neon", "arm_neon_dot", ""}) {
      test(argv[1], "tiny.bnn", threads, isa);
      for (const std::string& name : networks) test(folder.c_str(), name.c_str(), threads, isa);
    }
  }
}
