// The yardstick of the micro benchmark: binary dots with the CPU's 64-bit popcount instruction and nothing else.
#pragma once

#include <cstdint>

namespace ovsw {

// The sum over all pixels and channels of popcount(patch xor weight), `words` 64-bit words each.
std::uint64_t popcount_dots(const std::uint64_t* patches, int pixels, const std::uint64_t* weights, int channels,
                            int words);

}  // namespace ovsw
