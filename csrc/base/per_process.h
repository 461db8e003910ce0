// Per-process state. After fork() the child has none of its parent's threads, and locks that they held stay locked.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace ovsw {

// The number of forks between the process that loaded this code and this one.
std::uint64_t forks();

// A T for each process, made at first use, and made anew in the child of a fork. The child never touches or frees the
// parent's T: its locks may be held, and its threads cannot be joined.
template <typename T>
class PerProcess {
 public:
  PerProcess() = default;
  ~PerProcess() {
    Entry* entry = entry_;
    if (entry && entry->process == forks()) delete entry;
  }
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  T& get() {
    Entry* entry = entry_;
    if (entry && entry->process == forks()) return entry->value;
    auto mine = std::make_unique<Entry>();
    if (entry_.compare_exchange_strong(entry, mine.get())) return mine.release()->value;
    return entry->value;  // another thread was faster
  }

 private:
  struct Entry {
    const std::uint64_t process = forks();
    T value;
  };

  std::atomic<Entry*> entry_{nullptr};
};

}  // namespace ovsw
