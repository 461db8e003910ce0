// CRC-32 as in zlib and PNG (polynomial 0xEDB88320, reflected).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovsw {

// Continues `crc` (0 to begin) over `size` bytes.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size);

}  // namespace ovsw
