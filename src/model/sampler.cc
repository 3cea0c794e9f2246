// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include <cmath>
#include <limits>

#include "base/cat.h"
#include "base/random.h"
#include "trimtab/error.h"

namespace trimtab {

namespace {

// A number in [0, 1).
double uniform(uint64_t seed, uint64_t prompt, uint64_t position) {
  return static_cast<double>(split_mix64(split_mix64(split_mix64(seed) + prompt) + position) >>
                             11) *
         0x1p-53;
}

}  // namespace

int32_t most_likely(std::span<const float> logits) {
  float top = -std::numeric_limits<float>::infinity();
  int32_t id = -1;
  for (int32_t i = 0; i < std::ssize(logits); ++i) {
    if (logits[i] > top) {
      top = logits[i];
      id = i;
    }
  }
  if (id < 0)
    throw InvalidArgument(cat("none of the ", logits.size(), " logits is a number to choose by"));
  return id;
}

int32_t sample(std::span<const float> logits, float temperature, uint64_t seed, uint64_t prompt,
               uint64_t position) {
  const int32_t best = most_likely(logits);
  const double top = logits[best];
  const auto weight = [&](float logit) { return std::exp((logit - top) / temperature); };
  double total = 0.0;
  for (const float logit : logits) total += logit <= top ? weight(logit) : 0.0;
  double left = uniform(seed, prompt, position) * total;
  for (int32_t i = 0; i < std::ssize(logits); ++i) {
    if (!(logits[i] <= top)) continue;
    left -= weight(logits[i]);
    if (left < 0.0) return i;
  }
  return best;  // rounding left a remainder
}

}  // namespace trimtab
