// exp and log in double by operations that give the same bits everywhere, as docs/numerics.md defines them.
#pragma once

#include "kernels/portable/config.h"

namespace ovsw::OVSW_ISA::portable {

OVSW_INLINE double power_of_two(int k) {
  const std::int64_t bits = std::int64_t(1023 + k) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}

// e^x = 2^k * e^r with |r| <= ln(2) / 2, and e^r by its series. 2^k comes in two factors: k may leave the exponents.
OVSW_INLINE double exponential(double x) {
  constexpr double kFactorial[] = {1.,    1.,     2.,      6.,       24.,       120.,       720.,
                                   5040., 40320., 362880., 3628800., 39916800., 479001600., 6227020800.};
  x = x >= -745.0 ? x : -745.0;  // also of NaN, which no integer holds
  x = x > 709.0 ? 709.0 : x;
  const double scaled = x * 1.4426950408889634 + 0.5;
  int k = int(scaled);
  k -= double(k) > scaled;
  const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
  double p = 1.0 / kFactorial[13];
#pragma GCC unroll 13
  for (int n = 12; n >= 0; --n) p = p * r + 1.0 / kFactorial[n];
  const int a = k >> 1;
  return p * power_of_two(a) * power_of_two(k - a);
}

// Of s >= 1: ln(m * 2^k) with 0.75 <= m < 1.5, by the series of artanh.
inline double logarithm(double s) {
  std::int64_t bits;
  std::memcpy(&bits, &s, sizeof bits);
  int k = int(bits >> 52) - 1023;
  double m = s * power_of_two(-k);
  if (m >= 1.5) {
    m *= 0.5;
    ++k;
  }
  const double t = (m - 1.0) / (m + 1.0), z = t * t;
  double h = 1.0 / 41;
  for (int i = 19; i >= 0; --i) h = h * z + 1.0 / (2 * i + 1);
  return k * 0.6931471805599453 + 2.0 * t * h;
}

}  // namespace ovsw::OVSW_ISA::portable
