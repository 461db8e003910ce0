// The system refuses the first, second, ... thread: each time the answer is OVSW_SYSTEM_ERROR, those that did start
// have ended, and the next call has all it needs.

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "ovsw.h"

namespace {

std::atomic<int> allowed{1000};  // threads that may still be started

}  // namespace

// Instead of the one that libstdc++ would get from libc.
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*start)(void*), void* argument) {
  using Create = decltype(&pthread_create);
  if (allowed-- <= 0) return EAGAIN;
  void* real = dlsym(RTLD_NEXT, "pthread_create");
  CHECK(real);
  return reinterpret_cast<Create>(real)(thread, attributes, start, argument);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  char* path = path_of(argv[1], "tiny.bnn");
  const std::uint8_t pixels[16] = {1, 2, 3};
  float expected[2], logits[2];
  ovsw_model* model = nullptr;
  CHECK(ovsw_load_file(path, nullptr, &model) == OVSW_OK);
  CHECK(ovsw_run_pixels(model, 1, pixels, 16, expected, 2) == OVSW_OK);
  ovsw_close(model);

  ovsw_options options = OVSW_OPTIONS;
  options.threads = 5;
  for (int started = 0; started < 4; ++started) {
    CHECK(ovsw_load_file(path, &options, &model) == OVSW_OK);
    allowed = started;
    CHECK(ovsw_run_pixels(model, 1, pixels, 16, logits, 2) == OVSW_SYSTEM_ERROR);
    char words[64];
    sprintf(words, "cannot start thread %d of 5: ", started + 2);
    CHECK(strstr(ovsw_last_error(), words) == ovsw_last_error());
    allowed = 4;
    CHECK(ovsw_run_pixels(model, 1, pixels, 16, logits, 2) == OVSW_OK && allowed == 0);
    CHECK(!memcmp(logits, expected, sizeof logits));
    ovsw_close(model);
  }
  free(path);
}
