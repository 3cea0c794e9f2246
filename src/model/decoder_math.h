// SPDX-License-Identifier: Apache-2.0
// The decoder's operations on single rows, between its linear maps. All sums have an order that
// depends on the length alone.
#pragma once

#include <cstdint>
#include <span>

namespace trimtab {

float dot(const float* a, const float* b, int64_t n) noexcept;

// out = x / rms(x) * weight; out may be x. All [weight.size()].
void rms_norm(const float* x, std::span<const float> weight, float eps, float* out) noexcept;

// Whether no number is NaN or an infinity.
bool all_finite(std::span<const float> x) noexcept;

// Rotary embedding of one head, in place, in the half-split form: x[i] and x[i + n] turn by the
// angle of sine[i], cosine[i], where n = sine.size() = head_dim / 2.
void rotate(float* x, std::span<const float> sine, std::span<const float> cosine) noexcept;

// Softmax attention of one query head over the positions [first, last), first < last. keys, values:
// [.., head_dim], row p for position p. q, out: [head_dim]. scale multiplies the scores.
void attend(const float* q, const float* keys, const float* values, int64_t first, int64_t last,
            int64_t head_dim, float scale, float* out) noexcept;

}  // namespace trimtab
