// Memory at 64-byte aligned addresses, freed with its owner.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace ovsw {

constexpr std::size_t kAlign = 64;

constexpr std::size_t align_up(std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

class Buffer {
 public:
  // The bytes that a buffer of this size allocates: whole cache lines, at least one.
  static constexpr std::size_t takes(std::size_t bytes) { return align_up(bytes ? bytes : 1); }

  Buffer() = default;
  explicit Buffer(std::size_t bytes) : data_(std::aligned_alloc(kAlign, takes(bytes))) {
    if (!data_) throw std::bad_alloc();
  }

  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> data_;
};

}  // namespace ovsw
