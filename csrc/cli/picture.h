// Image files that can be read without a library: binary PPM and PGM (P6, P5), and BMP without compression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ovsw::cli {

struct Picture {
  std::size_t height = 0, width = 0, channels = 0;
  std::vector<std::uint8_t> pixels;  // [row][column][channel]
};

// The bytes of a file, or of the standard input for "-". Like the others, throws std::runtime_error without the name.
std::string read_bytes(const std::string& path);

// Decodes a file to 1 or 3 channels. Alpha is dropped.
Picture decode(const std::string& bytes);

// Converted to 1 channel (ITU-R 601-2 luma) or 3 channels.
Picture with_channels(Picture picture, std::size_t channels);

}  // namespace ovsw::cli
