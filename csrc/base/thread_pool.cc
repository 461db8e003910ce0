#include "csrc/base/thread_pool.h"

#include <chrono>
#include <system_error>

#include "csrc/base/error.h"

namespace ovsw {
namespace {

// The steps of a network follow each other within microseconds: look for the next one for this long before sleeping.
constexpr auto kSpin = std::chrono::microseconds(50);

template <typename Condition>
bool spin_until(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) return true;
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : shares_(static_cast<std::size_t>(threads)) {
  workers_.reserve(static_cast<std::size_t>(threads));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
  } catch (const std::system_error& e) {  // those that run must end before their pool does
    const std::size_t next = workers_.size() + 2;
    stop();
    throw std::system_error(e.code(), text("cannot start thread ", next, " of ", threads));
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    ++generation_;
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::start(const Job& job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job_ = job;
    for (int t = 0; t < threads(); ++t) {
      shares_[std::size_t(t)].next = job.parts * t / threads();
      shares_[std::size_t(t)].end = job.parts * (t + 1) / threads();
    }
    busy_ = int(workers_.size());
    ++generation_;
  }
  wake_.notify_all();
  work(0);
  const auto finished = [this] { return busy_ == 0; };
  if (spin_until(finished)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, finished);
}

void ThreadPool::work(int thread) {
  for (int i = 0; i < threads(); ++i) {
    Share& share = shares_[std::size_t((thread + i) % threads())];
    for (;;) {
      const std::int64_t part = share.next.fetch_add(1);
      if (part >= share.end) break;
      job_.call(job_.fn, part, thread);
    }
  }
}

void ThreadPool::worker(int thread) {
  for (std::uint64_t seen = 0;;) {
    const auto called = [&] { return generation_ != seen; };
    if (!spin_until(called)) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, called);
    }
    seen = generation_;
    if (stop_) return;
    work(thread);
    // The last one out wakes the caller. The lock is for a caller between its check and its sleep.
    if (--busy_ == 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      done_.notify_one();
    }
  }
}

}  // namespace ovsw
