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

}  // namespace trimtab
