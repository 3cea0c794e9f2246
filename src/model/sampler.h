// SPDX-License-Identifier: Apache-2.0
// Picks the next token from logits.
#pragma once

#include <cstdint>
#include <span>

#include "trimtab/generate.h"

namespace trimtab {

// The largest logit; ties go to the lower id. Throws InvalidArgument when no logit is a number.
int32_t most_likely(std::span<const float> logits);

// A draw, where the temperature is above 0. It is a pure function of its arguments: (seed, prompt,
// position) is the counter of the random number generator. Throws as most_likely().
int32_t sample(std::span<const float> logits, const Sampling& sampling, uint64_t seed,
               uint64_t prompt, uint64_t position);

// Throws InvalidArgument for a temperature below 0, top_k below 0, top_p outside (0, 1] and min_p
// outside [0, 1].
void check(const Sampling& sampling);

}  // namespace trimtab
