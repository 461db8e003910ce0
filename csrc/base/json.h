// A JSON reader (RFC 8259) that goes through the text once and stores nothing: a large text needs no extra memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ovsw {

// Every function reads the next value, and throws InvalidError with its byte if that is of another type.
class JsonReader {
 public:
  static constexpr int kMaxDepth = 100;  // of nested objects and lists

  // `text` must outlive the reader. Throws InvalidError if it is not UTF-8.
  explicit JsonReader(std::string_view text);

  // The first character of the next value, which tells its type; 0 at the end.
  char peek();

  // Any value: checked, and returned as text.
  std::string_view value();

  // With escapes replaced, in UTF-8.
  std::string string();

  // Calls fn(key) for each member, in order; fn must read the value.
  template <typename Fn>
  void object(Fn&& fn) {
    for (bool more = open('{', '}'); more; more = next('}')) {
      std::string key = string();
      expect(':');
      fn(std::move(key));
    }
  }

  // Calls fn() for each element; fn must read it.
  template <typename Fn>
  void list(Fn&& fn) {
    for (bool more = open('[', ']'); more; more = next(']')) fn();
  }

  // After the last value: nothing but spaces may follow.
  void end();

 private:
  [[noreturn]] void refuse(const char* expected) const;
  void expect(char c);
  bool open(char bracket, char closing);  // whether there is a first element
  bool next(char closing);                // whether there is another one
  void number();
  void literal(std::string_view word);
  std::size_t digits();
  std::uint32_t code_unit();

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// The value of an integer that is written without fraction and exponent and fits 64 bits; else nothing.
std::optional<std::int64_t> json_whole(std::string_view value);

}  // namespace ovsw
