// SPDX-License-Identifier: Apache-2.0
// Picks the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace trimtab {

// The largest logit; ties go to the lower id. Throws InvalidArgument when no logit is a number.
int32_t most_likely(std::span<const float> logits);

// A draw from softmax(logits / temperature), temperature > 0. The draw is a pure function of its
// arguments: (seed, prompt, position) is the counter of the random number generator. Throws as
// most_likely().
int32_t sample(std::span<const float> logits, float temperature, uint64_t seed, uint64_t prompt,
               uint64_t position);

}  // namespace trimtab
