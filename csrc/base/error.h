// Errors as exceptions, thrown at load and plan time only.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace ovsw {

// A model or an argument that cannot be accepted; a ValueError in Python.
class InvalidError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// fail("op ", 7, ": ...") and check(condition, "op ", 7, ": ...")
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw InvalidError(text(parts...));
}

template <typename... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) fail(parts...);
}

}  // namespace ovsw
