// SPDX-License-Identifier: Apache-2.0
#include "live/gate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "trimtab/balancer.h"

namespace trimtab {
namespace {

const Load kNoSteps;

std::vector<double> estimate(const Placement& placement, int layer, const Load& load,
                             SplitRule rule) {
  return estimated_pars(placement, layer, {load, kNoSteps}, {.sharing = rule});
}
std::vector<ChangedLayer> changed_in(const Placement& from, const Placement& to, const Load& load,
                                     SplitRule rule) {
  return changed_layers(from, to, {load, kNoSteps}, {.sharing = rule});
}

TEST(Gate, EstimatesSplitTokensAsTheLayersDo) {
  // Expert 0 has 90 of 120 tokens and a slot on each rank, 1 and 2 have 20 and 10.
  const Placement placement(1, 3, {2, 2}, {0, 1, 0, 2});
  const Load load{1, 1, 3, {90, 20, 10}};
  EXPECT_DOUBLE_EQ(estimate(placement, 0, load, SplitRule::kRoundRobin)[0], 65.0 / 60);
  EXPECT_DOUBLE_EQ(estimate(placement, 0, load, SplitRule::kStatic)[0], 65.0 / 60);
  EXPECT_DOUBLE_EQ(estimate(placement, 0, load, SplitRule::kSplit)[0], 1);
}

// A part of a window is many steps together, and may have more tokens than fit in 32 bits.
TEST(Gate, EstimatesPartsOfAnyNumberOfTokens) {
  const Placement placement(2, 3, {2, 2}, {0, 1, 0, 2, 0, 0, 1, 2});
  for (const int64_t tokens : {int64_t{1} << 20, int64_t{3'000'000'000}, int64_t{1} << 61}) {
    // Layer 1: rank 0 has expert 0 alone, rank 1 the others.
    const Load load{2, 2, 3, {tokens, 0, 0, tokens, 0, 0, 0, 0, 0, tokens, tokens / 2, 0}};
    for (const SplitRule rule : {SplitRule::kSplit, SplitRule::kRoundRobin}) {
      SCOPED_TRACE(name(rule));
      EXPECT_NEAR(estimate(placement, 0, load, rule)[0], 1, 1e-8);
      EXPECT_EQ(estimate(placement, 0, load, rule)[1], 1);
      EXPECT_NEAR(estimate(placement, 1, load, rule)[0], 2, 1e-8);
      EXPECT_NEAR(estimate(placement, 1, load, rule)[1], 4.0 / 3, 1e-8);
    }
  }
}

TEST(Gate, GainsAreOfTheLayersThatChange) {
  const Placement from(2, 4, {2, 2}, {0, 1, 2, 3, 0, 1, 2, 3});
  const Placement to(2, 4, {2, 2}, {0, 1, 2, 3, 0, 2, 1, 3});
  const Load load{2, 2, 4, {1, 1, 1, 1, 50, 50, 0, 0, 9, 0, 0, 0, 25, 25, 25, 25}};
  const std::vector<ChangedLayer> changed = changed_in(from, to, load, SplitRule::kStatic);
  ASSERT_EQ(changed.size(), 1U);
  EXPECT_EQ(changed[0].layer, 1);
  EXPECT_EQ(changed[0].before, (std::vector<double>{2, 1}));
  EXPECT_EQ(changed[0].after, (std::vector<double>{1, 1}));
  EXPECT_EQ(gains(changed), (std::vector<double>{1, 0}));
  EXPECT_TRUE(changed_in(from, from, load, SplitRule::kStatic).empty());
  EXPECT_TRUE(gains({}).empty());
}

TEST(Gate, GainsAreTheMeanOverTheLayersThatChange) {
  const std::vector<ChangedLayer> changed = {{0, {2, 1}, {1, 1}}, {2, {1.5, 2}, {1.5, 1}}};
  EXPECT_EQ(gains(changed), (std::vector<double>{0.5, 0.5}));
}

// Each expert costs the same for one row as for many: two of them on one rank take twice as long as
// one on each, however their rows are shared out, and a single step shows it where a sum does not.
TEST(Gate, EstimatesTheRuleThatServesInTime) {
  const CostModel weights({{1, 1'000'000}, {2, 1'000'000}});
  const Placement together(1, 4, {3, 3}, {0, 1, 2, 0, 2, 3}),
      apart(1, 4, {3, 3}, {0, 2, 3, 0, 1, 2});
  const Load parts{1, 1, 4, {10, 10, 10, 10}}, single{2, 1, 4, {0, 5, 5, 0, 7, 7, 0, 0}};
  const Serving time = {.sharing = SplitRule::kTime, .cost = &weights};
  // Steps of two experts, and one of them may go to the other rank either way.
  EXPECT_EQ(estimated_pars(together, 0, {parts, single}, time), (std::vector<double>{1, 1}));
  // Without single steps the parts are taken for steps: four experts, two on each rank.
  EXPECT_EQ(estimated_pars(together, 0, {parts, kNoSteps}, time), (std::vector<double>{1}));
  // Both replicas get rows of every step, and are read.
  const Serving turns = {.sharing = SplitRule::kRoundRobin, .cost = &weights};
  EXPECT_EQ(estimated_pars(together, 0, {parts, single}, turns), (std::vector<double>{2, 2}));
  EXPECT_EQ(estimated_pars(apart, 0, {parts, single}, turns), (std::vector<double>{2, 2}));
  const Placement alone(1, 4, {2, 2}, {1, 2, 0, 3}), halves(1, 4, {2, 2}, {1, 0, 2, 3});
  const auto changed = changed_layers(alone, halves, {parts, single}, time);
  ASSERT_EQ(changed.size(), 1U);
  EXPECT_EQ(changed[0].before, (std::vector<double>{2, 1}));
  EXPECT_EQ(changed[0].after, (std::vector<double>{1, 2}));
  EXPECT_DOUBLE_EQ(changed[0].saved_seconds, 0);
  const Load first{1, 1, 4, {0, 5, 5, 0}};
  const auto gained = changed_layers(alone, halves, {parts, first}, time);
  EXPECT_DOUBLE_EQ(gained[0].saved_seconds, 1e-6);
  BalancerConfig config;
  config.interval = 10;
  const Costs costs{.step_seconds = 1, .seconds_per_byte = 0, .seconds_per_layer = 1e-5};
  EXPECT_DOUBLE_EQ(worth_of(gained[0], 7, 0, costs, config, true).saved_seconds, 80e-6);
}

// Half of a step of 1 s waits for the busiest rank, which has twice the mean, and would no more.
TEST(Gate, APlanMustRepayItsMoves) {
  const Placement current(1, 4, {2, 2}, {0, 1, 2, 3}), next(1, 4, {2, 2}, {0, 2, 1, 3});
  const Load load{1, 1, 4, {50, 50, 0, 0}};
  BalancerConfig config;
  config.interval = 10;
  config.expected_life_windows = 2;
  config.expert_share = 0.5;
  const Costs costs{.step_seconds = 1, .seconds_per_byte = 0.01, .seconds_per_layer = 1};
  const auto changed = changed_in(current, next, load, SplitRule::kSplit);
  const Worth worth = worth_of(changed[0], 1, 200, costs, config, false);
  EXPECT_EQ(worth.steps, 20);
  EXPECT_NEAR(worth.saved_seconds, 20 * 0.5 * 0.5, 1e-12);
  EXPECT_NEAR(worth.move_seconds, 200 * 0.01 + 1, 1e-12);
  EXPECT_TRUE(worth.repays_its_moves());
  EXPECT_FALSE(worth_of(changed[0], 1, 401, costs, config, false).repays_its_moves());
  // A layer that stays as it is saves nothing, and a step waits for it too.
  EXPECT_DOUBLE_EQ(worth_of(changed[0], 2, 200, costs, config, false).saved_seconds,
                   20 * 0.5 * 0.5 / 2);
  Costs learned = costs;
  learned.life_windows = 0.5;
  EXPECT_EQ(worth_of(changed[0], 1, 200, learned, config, false).steps, 5);
  EXPECT_FALSE((Worth{.saved_seconds = std::nan("")}).repays_its_moves());
}

}  // namespace
}  // namespace trimtab
