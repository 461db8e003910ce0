// A fixed set of threads that share the parts of a job. Idle threads sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace ovsw {

class ThreadPool {
 public:
  // `threads` counts the caller of `run`, which takes part in the work.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return int(workers_.size()) + 1; }

  // Calls fn(part, thread) for parts 0 to `parts` - 1, and returns when all are done. Each thread begins with its own
  // share, which is the same in every job with as many parts, so its data may still be in its cache; then it helps the
  // others. One call at a time; fn must not throw.
  template <typename Fn>
  void run(std::int64_t parts, Fn&& fn) {
    if (workers_.empty() || parts == 1) {
      for (std::int64_t part = 0; part < parts; ++part) fn(part, 0);
      return;
    }
    start({[](void* f, std::int64_t part, int thread) { (*static_cast<Fn*>(f))(part, thread); }, &fn, parts});
  }

 private:
  struct Job {
    void (*call)(void*, std::int64_t, int) = nullptr;
    void* fn = nullptr;
    std::int64_t parts = 0;
  };

  // Parts [next, end) are still to be done.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  void stop();
  void start(const Job& job);
  void work(int thread);
  void worker(int thread);

  std::vector<std::thread> workers_;
  Job job_;
  std::vector<Share> shares_;                 // one per thread
  std::atomic<std::uint64_t> generation_{0};  // counts jobs; a change wakes the workers
  std::atomic<int> busy_{0};                  // workers that have not finished the current job
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_, done_;
};

}  // namespace ovsw
