// JSON text (RFC 8259), read from front to back. Nothing is kept but what the caller takes, so that a large text costs
// no more memory than its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ovsw {

// Every function takes the next value, and throws InvalidError naming the byte if it is another one than asked for.
class JsonReader {
 public:
  static constexpr int kMaxDepth = 100;  // objects and lists inside each other

  // `text` must outlive the reader. Throws InvalidError if it is not UTF-8.
  explicit JsonReader(std::string_view text);

  // The first character of the next value: it tells its type. 0 at the end.
  char peek();

  // Any value: checked, and returned as it is written.
  std::string_view value();

  // Escapes become what they mean, in UTF-8.
  std::string string();

  // Calls fn(key) for each member, in order; fn must take the value.
  template <typename Fn>
  void object(Fn&& fn) {
    for (bool more = open('{', '}'); more; more = next('}')) {
      std::string key = string();
      expect(':');
      fn(std::move(key));
    }
  }

  // Calls fn() for each element; fn must take it.
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

// The number that a value is, if it is a whole one, written without fraction and exponent, that fits.
std::optional<std::int64_t> json_whole(std::string_view value);

}  // namespace ovsw
