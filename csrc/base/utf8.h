// Text encodings: what is UTF-8, and how a code point is written in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ovsw {

bool is_utf8(std::string_view text);

// `code` must be a code point that is no surrogate.
void append_utf8(std::string* text, std::uint32_t code);

}  // namespace ovsw
