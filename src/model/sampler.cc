// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <vector>

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

// The softmax of logits over a temperature, each weight over that of the largest logit.
struct Weights {
  double top;
  double temperature;

  double operator()(float logit) const { return std::exp((logit - top) / temperature); }
};

// The k-th largest of the logits that are at least `least`; `least` where they are fewer.
float kth_largest(std::span<const float> logits, int k, float least) {
  std::vector<float> kept;
  std::ranges::copy_if(logits, std::back_inserter(kept), [&](float l) { return l >= least; });
  if (std::ssize(kept) <= k) return least;
  std::ranges::nth_element(kept, kept.begin() + (k - 1), std::greater());
  return kept[k - 1];
}

// The smallest of the fewest logits, largest first, that have this share of the weight of all that
// are at least `least`.
float least_of_share(std::span<const float> logits, double share, float least,
                     const Weights& weight) {
  std::vector<float> heap;
  double total = 0;
  for (const float logit : logits) {
    if (!(logit >= least && logit <= weight.top)) continue;
    heap.push_back(logit);
    total += weight(logit);
  }
  std::ranges::make_heap(heap);
  for (double sum = 0; !heap.empty(); heap.pop_back()) {
    std::ranges::pop_heap(heap);
    sum += weight(heap.back());
    if (sum >= share * total) return heap.back();
  }
  return least;
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

int32_t sample(std::span<const float> logits, const Sampling& sampling, uint64_t seed,
               uint64_t prompt, uint64_t position) {
  const int32_t best = most_likely(logits);
  const Weights weight{logits[best], sampling.temperature};
  float least = -std::numeric_limits<float>::infinity();
  if (sampling.top_k > 0) least = kth_largest(logits, sampling.top_k, least);
  if (sampling.top_p < 1) least = least_of_share(logits, sampling.top_p, least, weight);
  // The weight of a token that can be drawn; a NaN can't.
  const auto weight_of = [&](float logit) {
    if (!(logit >= least && logit <= weight.top)) return 0.0;
    const double w = weight(logit);
    return w >= sampling.min_p ? w : 0.0;
  };
  double total = 0.0;
  for (const float logit : logits) total += weight_of(logit);
  double left = uniform(seed, prompt, position) * total;
  for (int32_t i = 0; i < std::ssize(logits); ++i) {
    const double w = weight_of(logits[i]);
    left -= w;
    if (w > 0.0 && left < 0.0) return i;
  }
  return best;  // rounding left a remainder
}

void check(const Sampling& sampling) {
  if (!(sampling.temperature >= 0.0F)) {
    throw InvalidArgument(cat("the temperature must be 0 or more, not ", sampling.temperature));
  }
  if (sampling.top_k < 0)
    throw InvalidArgument(cat("top_k must be 0 or more, not ", sampling.top_k));
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    throw InvalidArgument(cat("top_p must be above 0 and at most 1, not ", sampling.top_p));
  }
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1))
    throw InvalidArgument(cat("min_p must be between 0 and 1, not ", sampling.min_p));
}

}  // namespace trimtab
