// SPDX-License-Identifier: Apache-2.0
#include "router/forced_balance.h"

#include <algorithm>

namespace trimtab {
namespace {

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace

void pick_at_random(uint64_t seed, int layer, int64_t token, int num_experts, std::span<int32_t> ids) {
  uint64_t state = mix(mix(mix(seed) ^ static_cast<uint64_t>(layer)) ^ static_cast<uint64_t>(token));
  // Floyd's sampling without replacement: the i-th draw is from [0, last]; one that is taken already becomes last.
  for (size_t i = 0; i < ids.size(); ++i) {
    state = mix(state);
    const auto last = static_cast<uint64_t>(num_experts) - ids.size() + i;
    const auto drawn = static_cast<int32_t>(((state >> 32) * (last + 1)) >> 32);
    const auto taken = ids.first(i);
    const bool repeated = std::find(taken.begin(), taken.end(), drawn) != taken.end();
    ids[i] = repeated ? static_cast<int32_t>(last) : drawn;
  }
}

}  // namespace trimtab
