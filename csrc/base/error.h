// Errors as exceptions, thrown at load and plan time only.
#pragma once

#include <initializer_list>
#include <ostream>
#include <stdexcept>
#include <string>

namespace ovsw {

// A model or an argument that cannot be accepted; a ValueError in Python.
class InvalidError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// A part of a message: anything that can be written to a stream, with its type erased. So the code that composes
// messages exists once and not in every check, where it would be a third of the library.
class Part {
 public:
  template <typename T>
  Part(const T& value)
      : value_(&value), write_([](std::ostream& out, const void* v) { out << *static_cast<const T*>(v); }) {}
  Part(const char* text)
      : value_(text), write_([](std::ostream& out, const void* v) { out << static_cast<const char*>(v); }) {}

  friend std::ostream& operator<<(std::ostream& out, const Part& part) {
    part.write_(out, part.value_);
    return out;
  }

 private:
  const void* value_;
  void (*write_)(std::ostream&, const void*);
};

std::string join(std::initializer_list<Part> parts);
[[noreturn]] void throw_invalid(std::initializer_list<Part> parts);

// text("op ", 7, ": ..."), fail("op ", 7, ": ...") and check(condition, "op ", 7, ": ...")
template <typename... Parts>
std::string text(const Parts&... parts) {
  return join({Part(parts)...});
}

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw_invalid({Part(parts)...});
}

template <typename... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) fail(parts...);
}

}  // namespace ovsw
