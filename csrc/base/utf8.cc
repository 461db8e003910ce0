#include "csrc/base/utf8.h"

#include <cstddef>

namespace ovsw {

bool is_utf8(std::string_view text) {
  constexpr std::uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};  // by number of following bytes
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if ((lead >= 0x80 && lead < 0xC0) || lead >= 0xF8) return false;
    const int following = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    std::uint32_t code = following ? lead & (0x3Fu >> following) : lead;
    for (int k = 0; k < following; ++k) {
      if (i == text.size() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return false;
      code = code << 6 | (static_cast<unsigned char>(text[i++]) & 0x3F);
    }
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    if (code < kSmallest[following] || surrogate || code > 0x10FFFF) return false;
  }
  return true;
}

void append_utf8(std::string* text, std::uint32_t code) {
  const int following = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr std::uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  text->push_back(char(kLead[following] | code >> (6 * following)));
  for (int k = following - 1; k >= 0; --k) text->push_back(char(0x80 | (code >> (6 * k) & 0x3F)));
}

}  // namespace ovsw
