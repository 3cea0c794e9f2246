// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

std::vector<double> popularity(RoutingKind kind, int experts) {
  std::vector<double> chances(experts, 1.0);
  if (kind == RoutingKind::kNatural) return chances;
  if (kind == RoutingKind::kUneven) {
    std::mt19937_64 random(1);
    std::lognormal_distribution<double> uneven(0, 0.8);
    for (double& chance : chances) chance = uneven(random);
    return chances;
  }
  for (size_t e = 0; e < chances.size(); ++e) chances[e] = 1.0 / static_cast<double>(e + 1);
  std::mt19937_64 random(1);
  std::shuffle(chances.begin(), chances.end(), random);
  return chances;
}

}  // namespace

std::string_view routing_name(RoutingKind kind) {
  return kind == RoutingKind::kNatural  ? "natural"
         : kind == RoutingKind::kUneven ? "uneven"
                                        : "skewed";
}

RoutingKind find_routing(std::string_view name) {
  for (const RoutingKind kind :
       {RoutingKind::kNatural, RoutingKind::kUneven, RoutingKind::kSkewed}) {
    if (routing_name(kind) == name) return kind;
  }
  throw InvalidArgument(cat(name, " is not a kind of routing: natural, uneven, skewed"));
}

// Drawing without replacement: the top_k least of exponential variables with the chances as rates
// (Efraimidis and Spirakis: Weighted random sampling with a reservoir, 2006).
Picks route(RoutingKind kind, int64_t tokens, int experts, int top_k, uint64_t seed) {
  const std::vector<double> chances = popularity(kind, experts);
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> exponential;
  std::uniform_real_distribution<float> uniform(0.5F, 1.5F);
  Picks picks;
  std::vector<std::pair<double, int32_t>> keys(chances.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (size_t e = 0; e < keys.size(); ++e)
      keys[e] = {exponential(random) / chances[e], static_cast<int32_t>(e)};
    std::partial_sort(keys.begin(), keys.begin() + top_k, keys.end());
    std::vector<float> weights;
    for (int k = 0; k < top_k; ++k) weights.push_back(uniform(random));
    const float sum = std::accumulate(weights.begin(), weights.end(), 0.0F);
    for (int k = 0; k < top_k; ++k) {
      picks.ids.push_back(keys[k].second);
      picks.weights.push_back(weights[k] / sum);
    }
  }
  return picks;
}

std::vector<int32_t> counts_of(std::span<const int32_t> ids, int experts) {
  std::vector<int32_t> counts(experts);
  for (const int32_t id : ids) ++counts[id];
  return counts;
}

}  // namespace trimtab::bench
