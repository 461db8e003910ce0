// Picture files that need no library to be read: binary PPM and PGM (P6, P5), and BMP without compression.
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

// The bytes of a file, or of the standard input for "-". Throws std::runtime_error, as the others do, without the name.
std::string read_bytes(const std::string& path);

// The picture that these bytes are, of 1 or 3 channels. Alpha is dropped.
Picture decode(const std::string& bytes);

// The same in colours, or in grey as ITU-R 601-2 weighs them.
Picture with_channels(Picture picture, std::size_t channels);

}  // namespace ovsw::cli
