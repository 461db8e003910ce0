#include "csrc/base/per_process.h"

#include <pthread.h>

namespace ovsw {
namespace {

std::atomic<std::uint64_t> count{0};

// Before anything of ours can run. If it fails for want of memory, so does all that follows.
const int registered = pthread_atfork(nullptr, nullptr, [] { ++count; });

}  // namespace

std::uint64_t forks() {
  (void)registered;
  return count;
}

}  // namespace ovsw
