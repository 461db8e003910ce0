#include "csrc/base/error.h"

#include <sstream>

namespace ovsw {

std::string join(std::initializer_list<Part> parts) {
  std::ostringstream out;
  for (const Part& part : parts) out << part;
  return out.str();
}

void throw_invalid(std::initializer_list<Part> parts) { throw InvalidError(join(parts)); }

}  // namespace ovsw
