// SPDX-License-Identifier: Apache-2.0
// Random picks for profile runs, so that no expert gets more than its share whatever the router
// thinks.
#pragma once

#include <cstdint>
#include <span>

namespace trimtab {

// Fills ids with distinct experts in [0, num_experts), every set equally likely. Depends on the
// arguments alone, so a token gets the same ids in any batch, slice or thread. ids.size() <=
// num_experts.
void pick_at_random(uint64_t seed, int layer, int64_t token, int num_experts,
                    std::span<int32_t> ids);

}  // namespace trimtab
