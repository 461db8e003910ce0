#include "csrc/base/per_process.h"

#include <pthread.h>

namespace ovsw {
namespace {

std::atomic<std::uint64_t> count{0};

// Registered before any of our code runs. If it fails for lack of memory, so does everything after it.
const int registered = pthread_atfork(nullptr, nullptr, [] { ++count; });

}  // namespace

std::uint64_t forks() {
  (void)registered;
  return count;
}

}  // namespace ovsw
