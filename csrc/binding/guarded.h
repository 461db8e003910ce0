// Memory between two pages that nobody may touch, and what turns touching them into an error that says so. Here for
// what ASan cannot see: kernels under an emulator, and those written in assembly.
#pragma once

#include <cstddef>

namespace ovsw {

class Guarded {
 public:
  struct Options {
    unsigned char pattern;  // what the memory is filled with
    bool at_end;            // the data ends where a page begins that nobody may touch, else it begins where one ends
  };

  // `align` is a power of two. Data that ends at a page begins at a multiple of it, with up to align - 1 bytes between.
  Guarded(std::size_t bytes, std::size_t align, const Options& options);
  ~Guarded();
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }
  bool intact() const;  // nothing was written around the data, as far as that is possible
  // Whether an address is in these pages; and how many bytes past the end of the data, or, negative, before it.
  bool owns(const void* address) const { return address >= pages_ && address < pages_ + size_; }
  std::ptrdiff_t distance(const void* address) const;

 private:
  std::byte *pages_, *data_;
  std::size_t size_, bytes_;  // of all pages, of the data
  unsigned char pattern_;
};

// Calls call(argument). Returns the address that it touched and must not have, at which it was stopped; null if it came
// to its end. Nothing on its stack may need a destructor. One thread at a time.
const void* touched(void (*call)(void*), void* argument);

// The same for anything that can be called.
template <typename Fn>
const void* touched_by(Fn fn) {
  return touched([](void* f) { (*static_cast<Fn*>(f))(); }, &fn);
}

}  // namespace ovsw
