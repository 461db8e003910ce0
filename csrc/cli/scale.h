// Resizes and crops an image to a network's input by the rules of docs/format.md, with the same bytes as Pillow.
#pragma once

#include <cstddef>

#include "csrc/cli/picture.h"

namespace ovsw::cli {

// Scales the shorter side to `resize` by bilinear interpolation with antialiasing, then crops the centre of `height` x
// `width`, which must not be larger than `resize`.
Picture scaled_centre(const Picture& picture, std::size_t resize, std::size_t height, std::size_t width);

}  // namespace ovsw::cli
