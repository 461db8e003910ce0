// The threads that training uses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>

#include "csrc/base/per_process.h"
#include "csrc/base/thread_pool.h"

namespace ovsw::train {

constexpr int kShares = 8;  // at most, whatever the number of threads, so results do not depend on it

// One job at a time, on threads that stay.
class Workers {
 public:
  explicit Workers(int threads) : shared_(all().get()), lock_(shared_.mutex) {
    if (!shared_.pool || shared_.pool->threads() != threads) {
      shared_.pool.reset();
      shared_.pool = std::make_unique<ThreadPool>(threads);
    }
  }

  // fn(share, first, last, thread) for equal shares of `count` things.
  template <typename Fn>
  void share(int count, Fn&& fn) {
    share(count, std::min(count, kShares), fn);
  }

  template <typename Fn>
  void share(int count, int shares, Fn&& fn) {
    shared_.pool->run(shares, [&](std::int64_t s, int thread) {
      fn(int(s), int(count * s / shares), int(count * (s + 1) / shares), thread);
    });
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::unique_ptr<ThreadPool> pool;
  };

  // Never destroyed: when the process ends, a thread may still be working.
  static PerProcess<Shared>& all() {
    static auto& shared = *new PerProcess<Shared>;
    return shared;
  }

  Shared& shared_;
  std::lock_guard<std::mutex> lock_;
};

}  // namespace ovsw::train
