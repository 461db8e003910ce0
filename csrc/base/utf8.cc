#include "csrc/base/utf8.h"

#include <cstdio>

namespace ovsw {
namespace {

// Control characters, line ends, marks that change the writing direction.
bool is_command(std::int32_t code) {
  const auto in = [code](std::int32_t first, std::int32_t last) { return code >= first && code <= last; };
  return code < 0x20 || in(0x7F, 0x9F) || code == 0x61C || in(0x200B, 0x200F) || in(0x2028, 0x202E) ||
         in(0x2060, 0x206F) || code == 0xFEFF;
}

}  // namespace

Character first_character(std::string_view text) {
  constexpr Character kInvalid{-1, 1};
  constexpr std::int32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};  // by number of following bytes
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t following = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
  if ((lead >= 0x80 && lead < 0xC0) || lead >= 0xF8 || text.size() <= following) return kInvalid;
  std::int32_t code = following ? lead & (0x3F >> following) : lead;
  for (std::size_t k = 1; k <= following; ++k) {
    if ((text[k] & 0xC0) != 0x80) return kInvalid;
    code = code << 6 | (text[k] & 0x3F);
  }
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kSmallest[following] || surrogate || code > 0x10FFFF) return kInvalid;
  return {code, following + 1};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Character c = first_character(text);
    if (c.code < 0) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

void append_utf8(std::string* text, std::uint32_t code) {
  const int following = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr std::uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  text->push_back(char(kLead[following] | code >> (6 * following)));
  for (int k = following - 1; k >= 0; --k) text->push_back(char(0x80 | (code >> (6 * k) & 0x3F)));
}

std::string visible(std::string_view text) {
  std::string line;
  for (Character c; !text.empty(); text.remove_prefix(c.length)) {
    c = first_character(text);
    if (is_command(c.code)) {
      const unsigned code = c.code < 0 ? static_cast<unsigned char>(text.front()) : unsigned(c.code);
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, code < 0x100 ? "\\x%02x" : "\\u%04x", code & 0xFFFF);
      line += escaped;
    } else {
      line += text.substr(0, c.length);
    }
  }
  return line;
}

}  // namespace ovsw
