// SPDX-License-Identifier: Apache-2.0
#include "policy/frame.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "policy/bounds.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

std::vector<int32_t> values(std::span<const int32_t> span) {
  return {span.begin(), span.end()};
}

// Whether all parts are in the text.
testing::AssertionResult says(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (text.find(part) == std::string::npos)
      return testing::AssertionFailure() << "'" << part << "' is not in: " << text;
  }
  return testing::AssertionSuccess();
}

Load load_of(int num_layers, int num_experts, std::vector<int64_t> counts) {
  const auto steps = static_cast<int64_t>(counts.size()) / (num_layers * num_experts);
  return {.num_steps = steps,
          .num_layers = num_layers,
          .num_experts = num_experts,
          .counts = std::move(counts)};
}

std::string message_of(const Problem& problem) {
  try {
    validate(problem);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

// E6: a first placement: from a file, or experts in order with replicas behind; redundancy from the
//     number of slots.
TEST(DefaultPlacement, PutsReplicasLastAndNamesTheSmallestLegalSizes) {
  const Placement placement = default_placement(2, 5, {3, 2, 2});
  EXPECT_EQ(values(placement.logical(1)), (std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1}));
  try {
    default_placement(1, 8, {2, 2, 2});
    FAIL() << "6 slots cannot hold 8 experts";
  } catch (const InvalidArgument& error) {
    EXPECT_TRUE(says(error.what(), {"8 experts do not fit in 6 slots on 3 ranks",
                                    "at least 3 slots a rank", "4 ranks of 2"}));
  }
  EXPECT_THROW(default_placement(1, 4, {}), InvalidArgument);
  EXPECT_THROW(default_placement(1, 4, {5, -1}), InvalidArgument);
}

TEST(Topology, EvenNodes) {
  EXPECT_EQ(Topology::even(4, 2).node_of_rank, (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(Topology::even(4, 2).num_nodes(), 2);
  EXPECT_EQ(Topology{}.num_nodes(), 1);
  EXPECT_THROW(Topology::even(4, 3), InvalidArgument);
}

TEST(Validate, NamesLayerStepAndExpert) {
  const Placement current = default_placement(2, 2, {1, 1});
  const Load negative = load_of(2, 2, {1, 1, 1, 1, 1, 1, 1, -3});
  EXPECT_TRUE(says(message_of({.load = negative, .current = current}),
                   {"layer 1, step 1, expert 1", "-3"}));
  const int64_t half = int64_t{1} << 62;
  const Load large = load_of(2, 2, {half, 0, 1, 1, 0, half, 1, 1});
  EXPECT_TRUE(says(message_of({.load = large, .current = current}),
                   {"layer 0, step 1, expert 1", "64 bits"}));
}

TEST(Validate, RefusesWhatDoesNotFitTogether) {
  const Placement current = default_placement(1, 2, {1, 1});
  const Load load = load_of(1, 2, {1, 2});
  EXPECT_EQ(message_of({.load = load, .current = current}), "");
  const Load other = load_of(1, 3, {1, 2, 3});
  EXPECT_TRUE(says(message_of({.load = other, .current = current}), {"3 experts"}));
  const Load torn{.num_steps = 2, .num_layers = 1, .num_experts = 2, .counts = {1, 2, 3}};
  EXPECT_TRUE(says(message_of({.load = torn, .current = current}), {"3 counts"}));
  EXPECT_TRUE(
      says(message_of({.load = load, .current = current, .topology = {{0, 0, 1}}}), {"3 ranks"}));
  EXPECT_TRUE(
      says(message_of({.load = load, .current = current, .topology = {{0, 7}}}), {"node 7"}));
  EXPECT_TRUE(says(message_of({.load = load, .current = current, .limits = {.max_layers = -1}}),
                   {"max_layers"}));
  EXPECT_TRUE(says(message_of({.load = load, .current = current, .limits = {.max_bytes = 5}}),
                   {"expert_bytes"}));
  EXPECT_TRUE(
      says(message_of({.load = load, .current = current, .num_groups = 3}), {"3 expert groups"}));
  const History history{.episodes = load, .weights = {1, 1}};
  EXPECT_TRUE(
      says(message_of({.load = load, .current = current, .history = &history}), {"2 weights"}));
}

// FlashLB's example on its default placement.
class FlashExample : public testing::Test {
 protected:
  const Load load_ = load_of(1, 8, {600, 560, 120, 120, 20, 10, 10, 10});
  const Placement current_ = default_placement(1, 8, std::vector<int>(8, 2));
  // 600 x 4, 560 x 3, 120 x 1, 120 x 3, 10 x 2: the optimum, 196.67.
  const std::vector<int32_t> optimum_ = {1, 5, 1, 6, 1, 7, 0, 3, 0, 3, 0, 3, 0, 4, 2, 7};
};

TEST_F(FlashExample, PredictsWhatAHandCountsAndMovesTheFewest) {
  const Plan plan =
      finish_plan({.load = load_, .current = current_, .expert_bytes = 100}, optimum_);
  const LayerPrediction& p = plan.layers[0];
  EXPECT_NEAR(p.par_before, 3.2, 1e-12);
  EXPECT_NEAR(p.par_after, (560.0 / 3 + 10) / 181.25, 1e-12);
  EXPECT_NEAR(p.par_step_after, p.par_after, 1e-12);
  EXPECT_NEAR(p.par_step_after_high, p.par_after, 1e-12);
  EXPECT_DOUBLE_EQ(p.bound_exact, 1.0);
  EXPECT_LE(p.bound_equal, p.par_after);
  EXPECT_EQ(plan.bytes, 100 * static_cast<int64_t>(plan.moves.size()));
  EXPECT_EQ(plan.placement.version(), current_.version() + 1);
  for (const Move& move : plan.moves) {
    EXPECT_EQ(plan.placement.logical(0)[move.slot], move.expert);
    EXPECT_NE(current_.logical(0)[move.slot], move.expert);
  }
  EXPECT_EQ(plan.duplicates[0], 0);
}

TEST_F(FlashExample, MoveLimitsStopOnTheWayAndNeverLoseAnExpert) {
  double last = 10;
  for (int64_t limit = 0; limit <= 9; ++limit) {
    const Plan plan = finish_plan(
        {.load = load_, .current = current_, .limits = {.max_moves_per_layer = limit}}, optimum_);
    EXPECT_LE(static_cast<int64_t>(plan.moves.size()), limit);
    EXPECT_LE(plan.layers[0].par_after, plan.layers[0].par_before);
    EXPECT_LE(plan.layers[0].par_after, last + 1e-12) << limit;
    last = plan.layers[0].par_after;
  }
  EXPECT_NEAR(last, 1.0851, 1e-4);
  const Plan one = finish_plan(
      {.load = load_, .current = current_, .limits = {.max_receive_per_rank = 1}}, optimum_);
  EXPECT_LE(one.receive_peak[0], 1);
  EXPECT_LT(one.layers[0].par_after, one.layers[0].par_before);
}

TEST(FinishPlan, ALevelOrEmptyLayerKeepsItsMap) {
  const Load load = load_of(2, 4, {0, 0, 0, 0, 5, 5, 5, 5});
  const Placement current = default_placement(2, 4, {2, 2});
  const Plan plan = finish_plan({.load = load, .current = current}, {0, 2, 1, 3, 3, 1, 2, 0},
                                {.require_gain = false});
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_EQ(plan.placement.version(), current.version());
  EXPECT_DOUBLE_EQ(plan.layers[0].par_after, 1.0);
}

TEST(FinishPlan, KeepsALayerThatTheProposalDoesNotImprove) {
  const Load load = load_of(1, 4, {9, 2, 5, 5});
  const Placement current = default_placement(1, 4, {2, 2});
  EXPECT_TRUE(finish_plan({.load = load, .current = current}, {0, 2, 1, 3}).moves.empty());
  EXPECT_FALSE(
      finish_plan({.load = load, .current = current}, {0, 2, 1, 3}, {.require_gain = false})
          .moves.empty());
}

// Proposing the placement in use changes nothing, so its prediction is that of a layer that keeps
// it.
TEST(FinishPlan, PredictsOfAKeptLayerWhatItHas) {
  const Load load = load_of(1, 4, {9, 2, 5, 5, 3, 3, 8, 1, 6, 2, 2, 9});
  const Placement current = default_placement(1, 4, {2, 2});
  const LayerPrediction kept =
      finish_plan({.load = load, .current = current}, {0, 2, 1, 3}).layers[0];
  EXPECT_DOUBLE_EQ(kept.par_after, kept.par_before);
  EXPECT_DOUBLE_EQ(kept.par_step_after, kept.par_step_before);
  const LayerPrediction same =
      finish_plan({.load = load, .current = current}, {0, 1, 2, 3}, {.require_gain = false})
          .layers[0];
  EXPECT_DOUBLE_EQ(kept.par_step_after_high, same.par_step_after_high);
  EXPECT_GT(kept.par_step_after_high, kept.par_step_after);
}

TEST(FinishPlan, TheLayersThatGainMostChangeFirst) {
  // Layer 0 gains a little, layer 1 a lot, layer 2 in between.
  const Load load = load_of(3, 4, {6, 5, 5, 4, 9, 9, 1, 1, 7, 7, 3, 3});
  const Placement current = default_placement(3, 4, {2, 2});
  const std::vector<int32_t> proposal = {0, 3, 1, 2, 0, 3, 1, 2, 0, 3, 1, 2};
  const Plan layers =
      finish_plan({.load = load, .current = current, .limits = {.max_layers = 2}}, proposal);
  std::set<int32_t> changed;
  for (const Move& move : layers.moves) changed.insert(move.layer);
  EXPECT_EQ(changed, (std::set<int32_t>{1, 2}));
  const Plan bytes = finish_plan(
      {.load = load, .current = current, .limits = {.max_bytes = 250}, .expert_bytes = 100},
      proposal);
  EXPECT_EQ(bytes.bytes, 200);
  EXPECT_EQ(bytes.moves[0].layer, 1);
}

// E4: every plan is checked: each expert placed, no replica twice on a rank unless forced, kept
//     experts keep their slots; then the list of transfers.
TEST(FinishPlan, RefusesAPolicysMistakes) {
  const Load load = load_of(1, 3, {1, 2, 3});
  const Placement current = default_placement(1, 3, {2, 2});
  EXPECT_THROW(finish_plan({.load = load, .current = current}, {0, 1, 2}), InvalidArgument);
  EXPECT_THROW(finish_plan({.load = load, .current = current}, {0, 1, 2, 3}), InvalidArgument);
  EXPECT_THROW(finish_plan({.load = load, .current = current}, {0, 1, 1, 0}), InvalidArgument);
}

TEST(PeakBounds, CountsTheReplicasThatAPeakNeeds) {
  // 2 ranks x 2 slots, 3 experts: one spare slot. 12 needs two replicas below 12: then 5 cannot be
  // split.
  const std::vector<int64_t> load = {12, 5, 1};
  const std::vector<int32_t> first_slots = {0, 2, 4};
  EXPECT_NEAR(peak_bounds(load, first_slots).exact, 9, 1e-6);
  const std::vector<int64_t> skewed = {100, 90, 1};
  EXPECT_NEAR(peak_bounds(skewed, first_slots).exact, 95.5, 1e-6);
  // Without a spare slot the largest expert is the bound.
  EXPECT_NEAR(peak_bounds(skewed, std::vector<int32_t>{0, 1, 2, 3}).exact, 100, 1e-6);
  EXPECT_EQ(peak_bounds(std::vector<int64_t>{0, 0, 0}, first_slots).equal, 0);
}

TEST(MakePolicy, ListsTheNames) {
  for (const std::string_view name : policy_names()) EXPECT_EQ(make_policy(name)->name(), name);
  try {
    make_policy("best");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_TRUE(says(error.what(), {"best", "trim"}));
  }
}

}  // namespace
}  // namespace trimtab
