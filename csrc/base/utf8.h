// UTF-8: decoding, encoding, and text that is safe to show on a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ovsw {

struct Character {
  std::int32_t code;  // -1 if the text does not begin with UTF-8; the length is then 1
  std::size_t length;
};

// The first character of a text that is not empty.
Character first_character(std::string_view text);

bool is_utf8(std::string_view text);

// `code` must be a code point that is not a surrogate.
void append_utf8(std::string* text, std::uint32_t code);

// The text on one line. Whatever a terminal would act on is escaped: control characters, line ends, marks that change
// the writing direction, and bytes that are not UTF-8.
std::string visible(std::string_view text);

}  // namespace ovsw
