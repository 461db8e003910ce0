// The part of a picture that a network sees, by the rules of docs/format.md and with the bytes that Python's Pillow
// gives.
#pragma once

#include <cstddef>

#include "csrc/cli/picture.h"

namespace ovsw::cli {

// The shorter side scaled to `resize` by bilinear interpolation with antialiasing, then the centre of `height` x
// `width` cut out, which must not be larger than `resize`.
Picture scaled_centre(const Picture& picture, std::size_t resize, std::size_t height, std::size_t width);

}  // namespace ovsw::cli
