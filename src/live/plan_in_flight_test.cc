// SPDX-License-Identifier: Apache-2.0
#include "live/plan_in_flight.h"

#include <gtest/gtest.h>

#include "comm/testing.h"
#include "live/testing.h"

namespace trimtab::test {
namespace {

// Two layers of four experts on two ranks.
const Placement kStart(2, 4, {2, 2}, {0, 1, 2, 3, 0, 1, 2, 3});
const std::vector<int32_t> kNext = {0, 2, 1, 3, 3, 1, 2, 0};

TEST(MovesTo, AreTheSlotsThatChangeAndLeadThere) {
  const std::vector<Move> moves = moves_to(kStart, kNext);
  EXPECT_EQ(moves, (std::vector<Move>{{0, 1, 2}, {0, 2, 1}, {1, 0, 3}, {1, 3, 0}}));
  EXPECT_EQ(moves[0].from_slot, -1);
  const Placement next = with_moves(kStart, moves, 5);
  EXPECT_TRUE(std::ranges::equal(next.logical(), kNext));
  EXPECT_EQ(next.version(), 5U);
  EXPECT_TRUE(moves_to(kStart, kStart.logical()).empty());
}

PlanTask task_for(const BalancerConfig& config) {
  class Fixed final : public Policy {
   public:
    std::string_view name() const override { return "fixed"; }
    Plan rebalance(const Problem& problem) const override {
      return {problem.current.with(kNext, 1), {}, {}, {}, {}, 0, {}};
    }
  };
  Window window;
  window.load = {1, 2, 4, {9, 9, 1, 1, 1, 9, 9, 1}};
  window.rank_loads = RankLoads(1, 2, 2);
  std::ranges::copy(std::vector{18.0, 2.0}, window.rank_loads.at(0, 0).begin());
  std::ranges::copy(std::vector{10.0, 10.0}, window.rank_loads.at(0, 1).begin());
  window.rank_loads.sum_up_window();
  return {.config = config,
          .policy = std::make_shared<Fixed>(),
          .window = window,
          .current = kStart,
          .expert_bytes = 1,
          .max_receive = 2};
}

// All steps of a plan, each job run in place of the background thread.
TEST(PlanInFlight, GoesFromLoadsToSlots) {
  TRIMTAB_NEEDS_RANKS(2);
  const Table experts = make_table(2 * 4, Scheme::kW8A8, nullptr, 96);
  run_group(2, [&](Communicator& comm) {
    const BalancerConfig config = {.plan_above_par = 0, .gate = false};
    const auto slots = make_slots(kStart, experts, 1, comm);  // enough for one layer at a time
    const Balancer::Parts parts = {.placement = kStart, .slots = slots.get()};
    PlanInFlight plan(config, parts, comm);

    plan.gather(std::vector(3, static_cast<std::byte>(comm.rank())));
    if (comm.rank() == 0) {
      ASSERT_EQ(plan.windows().size(), 2U);
      EXPECT_EQ(plan.windows()[1], std::vector(3, std::byte{1}));
      plan.make(task_for(config))();
      EXPECT_EQ(plan.result().kind, PlanResult::Kind::kPlan);
    }
    plan.share(kStart)();
    ASSERT_TRUE(plan.has_layers());
    Placement now = kStart;
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(plan.has_layers());
      plan.stage(now, layer)();
      const auto all = plan.take_staged();
      ASSERT_EQ(all.size(), 1U);
      const PlanInFlight::StagedLayer& staged = all[0];
      EXPECT_EQ(staged.layer, layer);
      ASSERT_TRUE(staged.result.ok) << staged.result.reason;
      EXPECT_EQ(std::ssize(staged.moves), 2);
      EXPECT_EQ(staged.bytes, 2 * static_cast<int64_t>(slots->expert_bytes()));
      ASSERT_NE(staged.table, nullptr);
      if (layer == 0) {
        plan.commit(staged);
        now = with_moves(now, staged.moves, now.version() + 1);
      } else {
        plan.roll_back(staged);
      }
    }
    EXPECT_FALSE(plan.has_layers());
    EXPECT_EQ(plan.totals().switched_layers, 1);
    EXPECT_EQ(plan.totals().moves, 2);
    EXPECT_EQ(plan.totals().bytes, 4 * static_cast<int64_t>(slots->expert_bytes()));
    EXPECT_TRUE(std::ranges::equal(plan.before().logical(), kStart.logical()));
    for (int layer = 0; layer < 2; ++layer) {
      for (int s = 0; s < 2; ++s)
        EXPECT_EQ(slots->logical(layer, s), now.logical(layer)[2 * comm.rank() + s]);
    }
  });
}

TEST(PlanInFlight, AScreenedPlanMovesNothing) {
  TRIMTAB_NEEDS_RANKS(2);
  run_group(2, [&](Communicator& comm) {
    const BalancerConfig config = {.screen = true, .plan_above_par = 0, .gate = false};
    const Balancer::Parts parts = {.placement = kStart};
    PlanInFlight plan(config, parts, comm);
    if (comm.rank() == 0) {
      plan.make(task_for(config))();
      EXPECT_EQ(plan.result().kind, PlanResult::Kind::kPlan);
    }
    plan.share(kStart)();
    EXPECT_FALSE(plan.has_layers());
  });
}

}  // namespace
}  // namespace trimtab::test
