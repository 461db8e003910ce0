#include "csrc/base/error.h"

#include <sstream>

#include "csrc/base/utf8.h"

namespace ovsw {

std::string join(std::initializer_list<Part> parts) {
  std::ostringstream out;
  for (const Part& part : parts) out << part;
  return out.str();
}

void throw_invalid(std::initializer_list<Part> parts) { throw InvalidError(visible(join(parts))); }

}  // namespace ovsw
