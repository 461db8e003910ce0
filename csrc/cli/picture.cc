#include "csrc/cli/picture.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>

namespace ovsw::cli {
namespace {

constexpr std::uint64_t kMostPixels = 89478485;  // Pillow's limit
constexpr std::size_t kMostBytes = 4 * kMostPixels + (1 << 20);

[[noreturn]] void refuse(const std::string& why) { throw std::runtime_error(why); }

Picture picture_of(std::uint64_t height, std::uint64_t width, std::size_t channels) {
  const std::string size = std::to_string(width) + " x " + std::to_string(height);
  if (height == 0 || width == 0) refuse("has no pixels: " + size);
  if (width > kMostPixels || height > kMostPixels / width) {
    refuse("is too large: " + size + " pixels, the limit is " + std::to_string(kMostPixels));
  }
  return {std::size_t(height), std::size_t(width), channels, {}};
}

// The next number of a PNM header, after spaces and comments.
std::uint64_t header_number(std::string_view* rest) {
  auto next = [&] {
    if (rest->empty()) refuse("is truncated in its header");
    const char c = rest->front();
    rest->remove_prefix(1);
    return c;
  };
  char c = next();
  for (; std::strchr(" \t\n\v\f\r#", c) && c; c = next()) {
    while (c == '#' && next() != '\n') {
    }
  }
  std::uint64_t number = 0;
  if (c < '0' || c > '9') refuse("has a bad header: expected a number");
  for (; c >= '0' && c <= '9'; c = next()) {
    number = number * 10 + std::uint64_t(c - '0');
    if (number > kMostPixels) refuse("has a bad header: a number is too large");
  }
  return number;  // and the one space after it is taken
}

Picture decode_pnm(std::string_view rest) {
  const std::size_t channels = rest[1] == '6' ? 3 : 1;
  rest.remove_prefix(2);
  const std::uint64_t width = header_number(&rest), height = header_number(&rest), most = header_number(&rest);
  if (most != 255) refuse("has pixels up to " + std::to_string(most) + ", expected 255");
  Picture picture = picture_of(height, width, channels);
  const std::size_t size = picture.height * picture.width * channels;
  if (rest.size() < size) refuse("is truncated");
  picture.pixels.assign(rest.begin(), rest.begin() + std::ptrdiff_t(size));
  return picture;
}

std::uint32_t little_endian(std::string_view bytes, std::size_t at, int count) {
  if (bytes.size() < at + std::size_t(count)) refuse("is truncated in its header");
  std::uint32_t value = 0;
  for (int i = count; i-- > 0;) value = value << 8 | std::uint8_t(bytes[at + std::size_t(i)]);
  return value;
}

// Rows from the bottom up, or from the top down if the height is negative, each padded to four bytes.
Picture decode_bmp(std::string_view bytes) {
  const std::uint32_t start = little_endian(bytes, 10, 4), header = little_endian(bytes, 14, 4);
  if (header < 40) refuse("has an OS/2 header, which is not supported; save it as a Windows BMP");
  const auto width = std::int32_t(little_endian(bytes, 18, 4)), height = std::int32_t(little_endian(bytes, 22, 4));
  const std::uint32_t bits = little_endian(bytes, 28, 2), compression = little_endian(bytes, 30, 4);
  const std::uint32_t colours = little_endian(bytes, 46, 4);
  if (bits != 8 && bits != 24 && bits != 32) {
    refuse("has " + std::to_string(bits) + " bits per pixel, expected 8, 24 or 32");
  }
  if (compression != 0) refuse("is compressed or has an unusual channel order; save it with 24 bits");
  if (width < 0) refuse("has no pixels: its width is " + std::to_string(width));
  Picture picture = picture_of(std::uint64_t(height < 0 ? -std::int64_t(height) : height), std::uint64_t(width), 3);
  const std::size_t pixel = bits / 8, stride = (picture.width * pixel + 3) / 4 * 4;
  // The last row need not be padded.
  const std::size_t size = (picture.height - 1) * stride + picture.width * pixel;
  if (start > bytes.size() || bytes.size() - start < size) refuse("is truncated");
  std::string_view palette;  // blue, green, red and nothing
  if (bits == 8) {
    if (colours > 256) refuse("has a palette of " + std::to_string(colours) + " colours, expected at most 256");
    const std::size_t at = 14 + std::size_t(header), length = 4 * (colours ? colours : 256);
    if (at > bytes.size() || bytes.size() - at < length) refuse("is truncated in its palette");
    palette = bytes.substr(at, length);
  }
  picture.pixels.reserve(picture.height * picture.width * 3);
  for (std::size_t y = 0; y < picture.height; ++y) {
    const std::size_t row = start + (height < 0 ? y : picture.height - 1 - y) * stride;
    for (std::size_t x = 0; x < picture.width; ++x) {
      std::string_view bgr = bytes.substr(row + x * pixel, pixel);
      if (bits == 8) {
        const std::size_t index = 4 * std::size_t(std::uint8_t(bgr[0]));
        if (index >= palette.size()) refuse("has a pixel whose colour is not in its palette");
        bgr = palette.substr(index, 3);
      }
      for (std::size_t c = 3; c-- > 0;) picture.pixels.push_back(std::uint8_t(bgr[c]));
    }
  }
  return picture;
}

}  // namespace

std::string read_bytes(const std::string& path) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> opened;
  std::FILE* file = stdin;
  if (path != "-") {
    opened.reset(file = std::fopen(path.c_str(), "rb"));
    if (!file) refuse(std::string("cannot be opened (") + std::strerror(errno) + ")");
  }
  std::string bytes;
  char part[1 << 16];
  while (const std::size_t count = std::fread(part, 1, sizeof part, file)) {
    bytes.append(part, count);
    if (bytes.size() > kMostBytes) refuse("is too large: more than " + std::to_string(kMostBytes) + " bytes");
  }
  if (std::ferror(file)) refuse(std::string("cannot be read (") + std::strerror(errno) + ")");
  return bytes;
}

Picture decode(const std::string& bytes) {
  const std::string kind = bytes.substr(0, 2);
  if (kind == "P5" || kind == "P6") return decode_pnm(bytes);
  if (kind == "BM") return decode_bmp(bytes);
  refuse("is not a PPM, PGM or BMP file; convert it first: magick IMAGE out.ppm");
}

Picture with_channels(Picture picture, std::size_t channels) {
  if (channels != 1 && channels != 3) {
    refuse("has 1 or 3 channels, the network takes " + std::to_string(channels));
  }
  if (picture.channels == channels) return picture;
  Picture result{picture.height, picture.width, channels, {}};
  const std::vector<std::uint8_t>& from = picture.pixels;
  result.pixels.reserve(from.size() / picture.channels * channels);
  for (std::size_t i = 0; i < from.size(); i += picture.channels) {
    if (channels == 3) {
      result.pixels.insert(result.pixels.end(), 3, from[i]);
    } else {  // 0.299, 0.587 and 0.114 in 16 bits
      result.pixels.push_back(
          std::uint8_t((from[i] * 19595u + from[i + 1] * 38470u + from[i + 2] * 7471u + 32768u) >> 16));
    }
  }
  return result;
}

}  // namespace ovsw::cli
