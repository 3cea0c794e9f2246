// SPDX-License-Identifier: Apache-2.0
#include "trimtab/policy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

std::string refusal(const std::vector<std::string>& names, const PolicyOptions& options) {
  try {
    make_policies(names, options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MakePolicy, RefusesOptionsThatThePolicyDoesNotHave) {
  const struct {
    PolicyOptions options;
    std::string name, owner;
  } own[] = {{{.preset = "fast"}, "preset", "trim"},
             {{.time_budget_s = 1.0}, "time_budget", "trim"},
             {{.move_price = 0.0}, "move_price", "trim"},
             {{.keep_slots = false}, "keep_slots", "deepseek"},
             {{.seed = 3}, "seed", "random"}};
  for (const auto& [options, option, owner] : own) {
    for (const std::string_view policy : policy_names()) {
      SCOPED_TRACE(option + " for " + std::string(policy));
      if (policy == owner) {
        EXPECT_NO_THROW(make_policy(policy, options));
        continue;
      }
      EXPECT_THROW(make_policy(policy, options), InvalidArgument);
      EXPECT_EQ(refusal({std::string(policy)}, options),
                option + ": only " + owner + " has it, and the policy is " + std::string(policy));
      // It is taken by its policy, and the other goes without.
      EXPECT_EQ(make_policies(std::vector<std::string>{std::string(policy), owner}, options).size(),
                2U);
    }
  }
  EXPECT_EQ(refusal({"swift", "static"}, {.preset = "fast"}),
            "preset: only trim has it, and the policy is swift, static");
}

TEST(MakePolicy, RefusesUnknownNamesFirst) {
  const std::string text =
      "no policy 'best'; there are static round_robin random deepseek swift "
      "flashlb trim optimal";
  EXPECT_EQ(refusal({"trim", "best"}, {.keep_slots = false}), text);
  EXPECT_THROW(make_policy("best", {.preset = "fast"}), InvalidArgument);
}

TEST(MakePolicy, WithoutOptionsEveryPolicyIsMade) {
  for (const std::string_view name : policy_names()) EXPECT_EQ(make_policy(name)->name(), name);
}

// Every policy looks at least between layers.
TEST(Problem, StopEndsEveryPlan) {
  const Load load{.num_steps = 1,
                  .num_layers = 2,
                  .num_experts = 4,
                  .counts = {90, 10, 10, 10, 10, 10, 90, 10}};
  const Placement current = default_placement(2, 4, {3, 3});
  std::atomic<bool> stop{false};
  const Problem problem{.load = load, .current = current, .stop = &stop};
  for (const std::string_view name : policy_names()) {
    stop = false;
    EXPECT_NO_THROW(make_policy(name)->rebalance(problem)) << name;
    stop = true;
    EXPECT_THROW(make_policy(name)->rebalance(problem), PlanningStopped) << name;
  }
}

}  // namespace
}  // namespace trimtab
