// SPDX-License-Identifier: Apache-2.0
// Scores from logits. Exponential and logarithm are the project's own: libm's differ in the last bit between CPUs and
// versions, and one bit can make another expert win.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "trimtab/router.h"

namespace trimtab {

// exp(x) in f32 within 1 ulp, gradual underflow and overflow to infinity included. x must not be NaN. Branch-free, so
// that loops over it become vector code. Range reduction by a two-part ln 2 and the polynomial of Cephes' expf.
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

// x / sum over exp(x), the sum in ascending order of the index. In place allowed. An input at the maximum counts as
// exp(0) also when it is infinite, which gives the limits that Scoring promises. x must not be empty or hold NaN.
void softmax(std::span<const float> x, float* out);

// scores: [logits.size()].
void score(Scoring scoring, std::span<const float> logits, float* scores);

}  // namespace trimtab
