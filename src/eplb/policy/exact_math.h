// SPDX-License-Identifier: Apache-2.0
// exp, log and random numbers made of plain multiplications, additions and integer steps, so that every compiler and
// machine gets the same bits (libm does not promise that). Good to about 1e-7; accurate enough to steer a search.
#pragma once

#include <bit>
#include <cstdint>

#include "base/split_mix64.h"

namespace trimtab {

// exp(x) for x in [-87, 88]; values outside are clamped. Branch-free, so that loops over it vectorise.
inline float exact_exp(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504F + kRound) - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = (p * r) * r + (r + 1.0F);
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// log(x) for normal x > 0.
inline float exact_log(float x) {
  int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // mantissa in [sqrt(1/2), sqrt(2))
  bits -= exponent * (1 << 23);
  const float m = std::bit_cast<float>(bits) - 1.0F;
  const float s = m / (m + 2.0F);
  const float s2 = s * s;
  const float series = s2 * (0.66666667F + s2 * (0.4F + s2 * (0.28571429F + s2 * 0.24F)));
  return static_cast<float>(exponent) * 0.69314718F + s * (2.0F + series);
}

// A sequence of random numbers that a seed determines.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    const uint64_t value = split_mix64(state_);
    state_ += kSplitMix64Step;
    return value;
  }
  // In [0, n), n > 0. The bias of at most n / 2^32 does not matter to a search.
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(((bits() >> 32) * n) >> 32); }
  // In (0, 1).
  float unit() { return (static_cast<float>(bits() >> 41) + 0.5F) * 0x1p-23F; }

 private:
  uint64_t state_;
};

}  // namespace trimtab
