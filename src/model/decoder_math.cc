// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

namespace trimtab {

namespace {

// Partial sums of a dot product: two SSE or one AVX register full.
constexpr int64_t kLanes = 8;

}  // namespace

float dot(const float* a, const float* b, int64_t n) noexcept {
  float lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lane[l] += a[i + l] * b[i + l];
  }
  for (int64_t l = 0; i < n; ++i, ++l) lane[l] += a[i] * b[i];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

void rms_norm(const float* x, std::span<const float> weight, float eps, float* out) noexcept {
  const int64_t n = std::ssize(weight);
  const float scale = 1.0F / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

bool all_finite(std::span<const float> x) noexcept {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones: an infinity or NaN
  uint32_t largest[kLanes] = {};
  const int64_t n = std::ssize(x);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l)
      largest[l] = std::max(largest[l], std::bit_cast<uint32_t>(x[i + l]) & kExponent);
  }
  for (int64_t l = 0; i < n; ++i, ++l)
    largest[l] = std::max(largest[l], std::bit_cast<uint32_t>(x[i]) & kExponent);
  return *std::ranges::max_element(largest) < kExponent;
}

void rotate(float* x, std::span<const float> sine, std::span<const float> cosine) noexcept {
  const size_t half = sine.size();
  for (size_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace trimtab
