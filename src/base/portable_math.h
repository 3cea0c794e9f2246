// SPDX-License-Identifier: Apache-2.0
// Exponentials and logarithms made of plain multiplications, additions and integer steps, so that
// every compiler and machine gets the same bits (libm does not promise that). exp_f32 and log1p_f32
// are accurate to the last bit or nearly so and serve results; the coarse ones are shorter, and
// accurate enough to steer a search.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace trimtab {

// exp(x) in f32 within 1 ulp, gradual underflow and overflow to infinity included. x must not be
// NaN. Branch-free, so that loops over it become vector code. Range reduction by a two-part ln 2
// and the polynomial of Cephes' expf.
inline float exp_f32(float x) {
  x = std::min(std::max(x, -104.0F), 89.0F);  // beyond these the result is 0 or infinity anyway
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  constexpr float kRound = 12582912.0F;
  const float shifted = x * 1.44269504F + kRound;
  const int32_t n = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float whole = shifted - kRound;
  const float r = (x - whole * 0.693359375F) - whole * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // 2^n in two factors: each is a normal number, also when the product is not.
  const int32_t half = n >> 1;
  const float low = std::bit_cast<float>((half + 127) << 23);
  const float high = std::bit_cast<float>((n - half + 127) << 23);
  return p * low * high;
}

// log(1 + y) for y in [0, 1], as 2 atanh(y / (2 + y)); the series is cut where it is below 2e-9 of
// the result.
inline float log1p_f32(float y) {
  const float s = y / (2.0F + y);
  const float square = s * s;
  float p = 2.0F / 15.0F;
  p = p * square + 2.0F / 13.0F;
  p = p * square + 2.0F / 11.0F;
  p = p * square + 2.0F / 9.0F;
  p = p * square + 2.0F / 7.0F;
  p = p * square + 2.0F / 5.0F;
  p = p * square + 2.0F / 3.0F;
  p = p * square + 2.0F;
  return s * p;
}

// exp(x) to about 1e-7, for x in [-87, 88]; values outside are clamped. Branch-free, so that loops
// over it vectorise.
inline float coarse_exp(float x) {
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

// log(x) to about 1e-7, for normal x > 0.
inline float coarse_log(float x) {
  int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // mantissa in [sqrt(1/2), sqrt(2))
  bits -= exponent * (1 << 23);
  const float m = std::bit_cast<float>(bits) - 1.0F;
  const float s = m / (m + 2.0F);
  const float s2 = s * s;
  const float series = s2 * (0.66666667F + s2 * (0.4F + s2 * (0.28571429F + s2 * 0.24F)));
  return static_cast<float>(exponent) * 0.69314718F + s * (2.0F + series);
}

}  // namespace trimtab
