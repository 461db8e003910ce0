#include "csrc/base/error.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <sstream>

namespace ovsw {

namespace {

// What a terminal obeys instead of showing it: controls, ends of lines, marks that turn the direction of writing.
bool obeyed(std::uint32_t code) {
  const auto in = [code](std::uint32_t first, std::uint32_t last) { return code >= first && code <= last; };
  return code < 0x20 || in(0x7F, 0x9F) || code == 0x61C || in(0x200B, 0x200F) || in(0x2028, 0x202E) ||
         in(0x2060, 0x206F) || code == 0xFEFF;
}

// Messages quote what files say. All that is obeyed has at most three bytes in UTF-8.
std::string visible(const std::string& text) {
  std::string out;
  for (std::size_t i = 0, size = 1; i < text.size(); i += size) {
    const auto byte = [&](std::size_t k) -> std::uint32_t {
      return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0;
    };
    const std::uint32_t lead = byte(0);
    size = lead >> 4 == 0xE ? 3 : lead >> 5 == 0x6 ? 2 : 1;
    std::uint32_t code = size == 1 ? lead : lead & (0x3Fu >> (size - 1));
    for (std::size_t k = 1; k < size; ++k) code = code << 6 | (byte(k) & 0x3F);
    if ((size == 1 && lead >= 0x80) || !obeyed(code)) {
      out.append(text, i, size);
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, code < 0x100 ? "\\x%02x" : "\\u%04x", static_cast<unsigned>(code));
      out += escaped;
    }
  }
  return out;
}

}  // namespace

std::string join(std::initializer_list<Part> parts) {
  std::ostringstream out;
  for (const Part& part : parts) out << part;
  return out.str();
}

void throw_invalid(std::initializer_list<Part> parts) { throw InvalidError(visible(join(parts))); }

}  // namespace ovsw
