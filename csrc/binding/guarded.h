// Memory between two inaccessible pages, and a way to report accesses to these pages as errors. For what ASan cannot
// see: kernels under an emulator, and those written in assembly.
#pragma once

#include <cstddef>

namespace ovsw {

class Guarded {
 public:
  struct Options {
    unsigned char pattern;  // what the memory is filled with
    bool at_end;            // the data ends at an inaccessible page; otherwise it begins after one
  };

  // `align` is a power of two. Data at the end of a page begins at a multiple of it, so up to align - 1 bytes may
  // follow.
  Guarded(std::size_t bytes, std::size_t align, const Options& options);
  ~Guarded();
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }
  bool intact() const;  // whether the accessible bytes around the data are unchanged
  // Whether an address is in these pages, and how many bytes it is past the end of the data or (negative) before it.
  bool owns(const void* address) const { return address >= pages_ && address < pages_ + size_; }
  std::ptrdiff_t distance(const void* address) const;

 private:
  std::byte *pages_, *data_;
  std::size_t size_, bytes_;  // of all pages, of the data
  unsigned char pattern_;
};

// Calls call(argument) and stops it at the first invalid access. Returns that address, or null if it ran to its end.
// Nothing on its stack may need a destructor. One thread at a time.
const void* touched(void (*call)(void*), void* argument);

// The same for anything that can be called.
template <typename Fn>
const void* touched_by(Fn fn) {
  return touched([](void* f) { (*static_cast<Fn*>(f))(); }, &fn);
}

}  // namespace ovsw
