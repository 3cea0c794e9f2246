// SPDX-License-Identifier: Apache-2.0
// Scores from logits. Exponential and logarithm are those of base/portable_math.h: libm's differ in
// the last bit between CPUs and versions, and one bit can make another expert win.
#pragma once

#include <span>

#include "trimtab/router.h"

namespace trimtab {

// x / sum over exp(x), the sum in ascending order of the index. In place allowed. An input at the
// maximum counts as exp(0) also when it is infinite, which gives the limits that Scoring promises.
// x must not be empty or hold NaN.
void softmax(std::span<const float> x, float* out);

// scores: [logits.size()].
void score(Scoring scoring, std::span<const float> logits, float* scores);

}  // namespace trimtab
