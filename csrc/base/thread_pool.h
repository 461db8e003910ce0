// A fixed set of threads that share out index ranges. Idle threads sleep.
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

  // Calls fn(begin, end, thread) for ranges of `grain` indices that together cover [0, items), and returns when all
  // are done. Which thread gets which range is not fixed. One call at a time; fn must not throw.
  template <typename Fn>
  void run(std::int64_t items, std::int64_t grain, Fn&& fn) {
    if (workers_.empty() || items <= grain) {
      fn(std::int64_t{0}, items, 0);
      return;
    }
    start(
        {[](void* f, std::int64_t begin, std::int64_t end, int thread) { (*static_cast<Fn*>(f))(begin, end, thread); },
         &fn, items, grain});
  }

 private:
  struct Job {
    void (*call)(void*, std::int64_t, std::int64_t, int) = nullptr;
    void* fn = nullptr;
    std::int64_t items = 0;
    std::int64_t grain = 1;
  };

  void start(const Job& job);
  void work(int thread);
  void worker(int thread);

  std::vector<std::thread> workers_;
  Job job_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::uint64_t> generation_{0};  // counts jobs; a change wakes the workers
  std::atomic<int> busy_{0};                  // workers that have not finished the current job
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_, done_;
};

}  // namespace ovsw
