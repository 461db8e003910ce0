// What a file says of itself besides its network: class names and how an image is prepared.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ovsw {

struct Metadata {
  std::string text;                 // the whole, a JSON object
  std::vector<std::string> labels;  // one per channel of the first output; empty if the file has none
  int resize = 0;                   // what the shorter side of an image is scaled to before the input is cut out
};

// Checks what docs/format.md says of the fields in use, for a network of `outputs` classes whose input has a longer
// side of `side`. Throws InvalidError.
Metadata read_metadata(std::string text, std::size_t outputs, int side);

// The lists of class names that come with the library, a name per line. CMake makes them from python/ovsw/data.
struct BuiltinLabels {
  std::string_view name, lines;
};
std::vector<BuiltinLabels> builtin_labels();

}  // namespace ovsw
