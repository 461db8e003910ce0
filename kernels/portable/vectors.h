// Vector types of the compiler, as wide as the widest registers of the instruction set.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::portable {

#if defined(__AVX512F__)
constexpr int kVector = 64;
#elif defined(__AVX2__)
constexpr int kVector = 32;
#else
constexpr int kVector = 16;
#endif

template <typename T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVector)));
  static constexpr int kLanes = kVector / int(sizeof(T));
};
typedef std::int16_t Half __attribute__((vector_size(kVector / 2)));  // as many as Wide
typedef std::int32_t Wide __attribute__((vector_size(kVector)));
typedef std::int32_t Ints __attribute__((vector_size(kVector / 2)));  // as many as Doubles
typedef double Doubles __attribute__((vector_size(kVector)));

// A multiple of what any of them holds.
inline std::size_t padded(int channels) { return std::size_t(round_up(channels, 16)); }

template <typename T, typename U>
OVSW_INLINE T get(const U* from) {
  T vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

}  // namespace ovsw::OVSW_ISA::portable
