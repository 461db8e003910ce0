// The metadata of a file: class names, and how an image is prepared.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ovsw {

struct Metadata {
  std::string text;                 // all of it, a JSON object
  std::vector<std::string> labels;  // one per channel of the first output; empty if the file has none
  int resize = 0;                   // the shorter side of an image is scaled to this before the input is cropped
};

// Checks the fields in use against docs/format.md, for a network of `outputs` classes whose input has a longer side of
// `side`. Throws InvalidError.
Metadata read_metadata(std::string text, std::size_t outputs, int side);

// The lists of class names in the library, a name per line. CMake makes them from python/ovsw/data.
struct BuiltinLabels {
  std::string_view name, lines;
};
std::vector<BuiltinLabels> builtin_labels();

}  // namespace ovsw
