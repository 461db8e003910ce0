// Locks and threads across fork(): a child has none of its parent's threads, and what they held stays held.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace ovsw {

// How many forks lie between the process that loaded this code and this one.
std::uint64_t forks();

// A T for each process: made when first asked for, and in the child of a fork made anew. What the parent had is never
// touched or freed there: its locks may be held, and its threads cannot be joined.
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
    return entry->value;  // that of another thread, which was faster
  }

 private:
  struct Entry {
    const std::uint64_t process = forks();
    T value;
  };

  std::atomic<Entry*> entry_{nullptr};
};

}  // namespace ovsw
