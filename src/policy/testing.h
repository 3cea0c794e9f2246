// SPDX-License-Identifier: Apache-2.0
// Helpers that the tests of placements and of callers of a policy share.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "trimtab/policy.h"

namespace trimtab {

// first_slots of ranks with equally many slots: [ranks + 1].
inline std::vector<int32_t> equal_slots(int num_ranks, int slots_per_rank) {
  std::vector<int32_t> first;
  for (int r = 0; r <= num_ranks; ++r) first.push_back(r * slots_per_rank);
  return first;
}

// Plans whatever the test says.
class FakePolicy final : public Policy {
 public:
  explicit FakePolicy(std::function<Plan(const Problem&)> plan) : plan_(std::move(plan)) {}
  std::string_view name() const override { return "fake"; }
  Plan rebalance(const Problem& problem) const override { return plan_(problem); }

 private:
  std::function<Plan(const Problem&)> plan_;
};

}  // namespace trimtab
