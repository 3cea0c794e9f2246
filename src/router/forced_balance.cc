// SPDX-License-Identifier: Apache-2.0
#include "router/forced_balance.h"

#include <algorithm>

#include "base/random.h"

namespace trimtab {

void pick_at_random(uint64_t seed, int layer, int64_t token, int num_experts,
                    std::span<int32_t> ids) {
  uint64_t state = split_mix64(split_mix64(split_mix64(seed) ^ int64_t{layer}) ^ token);
  // Floyd's sampling without replacement: the i-th draw is from [0, last]; one that is taken
  // already becomes last.
  for (size_t i = 0; i < ids.size(); ++i) {
    state = split_mix64(state);
    const auto last = static_cast<int32_t>(num_experts - ids.size() + i);
    const auto drawn = static_cast<int32_t>(((state >> 32) * (last + uint64_t{1})) >> 32);
    const auto taken = ids.first(i);
    const bool repeated = std::find(taken.begin(), taken.end(), drawn) != taken.end();
    ids[i] = repeated ? last : drawn;
  }
}

}  // namespace trimtab
