// Every allocation of the library fails once: each time the answer is OVSW_OUT_OF_MEMORY, and afterwards all is well.

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "check.h"
#include "ovsw.h"

namespace {

thread_local long countdown = -1;  // allocations of this thread until one fails; negative: none does

bool fails() { return countdown >= 0 && countdown-- == 0; }

}  // namespace

// Instead of the ones that the library would get from libstdc++ and libc.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  void* p = nullptr;
  return fails() || posix_memalign(&p, alignment, size) != 0 ? nullptr : p;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return fails() ? nullptr : std::malloc(size ? size : 1);
}
void* operator new(std::size_t size) {
  if (void* p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  if (void* p = aligned_alloc(std::size_t(alignment), size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

// Calls with the first, second, ... allocation failing, until it gets through; returns how many failed.
template <typename Call>
long exhaust(Call call) {
  for (long n = 0;; ++n) {
    countdown = n;
    const ovsw_status status = call();
    const bool reached = countdown < 0;
    countdown = -1;
    if (!reached) {
      CHECK(status != OVSW_OUT_OF_MEMORY);
      return n;
    }
    // What fails inside a message that is being put together may be lost; the message's own status stays.
    CHECK(status == OVSW_OUT_OF_MEMORY || status == OVSW_INVALID_MODEL || status == OVSW_OK);
    if (status == OVSW_OUT_OF_MEMORY) CHECK(!strcmp(ovsw_last_error(), "out of memory"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  char* path = path_of(argv[1], "tiny.bnn");
  std::size_t size = 0;
  unsigned char* bytes = read_all(argv[1], "tiny.bnn", &size);
  const std::uint8_t pixels[16] = {1, 2, 3};
  float expected[2], logits[2];
  ovsw_options options = OVSW_OPTIONS;
  options.threads = 3;
  ovsw_model* model = nullptr;

  CHECK(exhaust([&] {
          ovsw_close(model);
          const ovsw_status status = ovsw_load_file(path, &options, &model);
          CHECK((status == OVSW_OK) == (model != nullptr));
          return status;
        }) > 50);
  CHECK(ovsw_run_pixels(model, 1, pixels, 16, expected, 2) == OVSW_OK);
  ovsw_close(model);

  CHECK(exhaust([&] {
          ovsw_model* cut = nullptr;
          const ovsw_status status = ovsw_load_memory(bytes, size - 1, &options, &cut);
          CHECK(status != OVSW_OK && !cut);
          return status;
        }) > 0);

  // A new model each time: what one run has allocated is kept for the next.
  CHECK(exhaust([&] {
          const long left = countdown;
          countdown = -1;
          CHECK(ovsw_load_memory(bytes, size, &options, &model) == OVSW_OK);
          countdown = left;
          const ovsw_status status = ovsw_run_pixels(model, 1, pixels, 16, logits, 2);
          const long rest = countdown;
          countdown = -1;
          CHECK(status != OVSW_OK || !memcmp(logits, expected, sizeof logits));
          CHECK(ovsw_run_pixels(model, 1, pixels, 16, logits, 2) == OVSW_OK);
          CHECK(!memcmp(logits, expected, sizeof logits));
          ovsw_close(model);
          countdown = rest;
          return status;
        }) > 5);
  std::free(bytes);
  std::free(path);
}
