// SPDX-License-Identifier: Apache-2.0
// Picks shared out over replicas batch by batch, and layers whose weights and replicas are replaced
// between calls.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/testing.h"
#include "layer/layer_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace layer_testing;

std::shared_ptr<const Experts> experts_of(const World& world, const Placement& placement,
                                          int rank) {
  return make_grouped_experts(slots_of(placement, rank, world.packed), kHidden, world.options.dtype,
                              world.format());
}

std::shared_ptr<const SplitTable> replicas_of(const Placement& placement) {
  return std::make_shared<const SplitTable>(placement, 0);
}

class SharedOut : public testing::TestWithParam<Way> {
 protected:
  World world() const {
    return World({.dispatcher = GetParam().dispatcher,
                  .shared = false,
                  .zero_experts = 0,
                  .split = GetParam().split});
  }
};
INSTANTIATE_TEST_SUITE_P(
    Ways, SharedOut,
    testing::Values(Way{"pull", SplitRule::kRoundRobin}, Way{"pull", SplitRule::kSplit},
                    Way{"all_to_all", SplitRule::kRoundRobin}, Way{"all_to_all", SplitRule::kSplit},
                    Way{"pull", SplitRule::kTime}, Way{"all_to_all", SplitRule::kTime}),
    [](const auto& param) { return param.param.name(); });

// Each rank has one token, and the hashed router sends all of them to the experts 0, 1 and 4.
// Expert 0 is on both ranks, with other weights on the second: so both replicas work, each with its
// own weights.
TEST_P(SharedOut, EachReplicaWorksWithItsOwnWeights) {
  TRIMTAB_NEEDS_RANKS(2);
  World world({.dispatcher = GetParam().dispatcher,
               .shared = false,
               .zero_experts = 0,
               .hashed = true,
               .split = GetParam().split});
  const Placement placement(1, kExperts, {4, 3}, {0, 1, 2, 3, 4, 5, 0});
  const MlpWeights other(kInner, 999);
  std::vector<std::vector<float>> outputs(2);
  const std::vector<float> x = input_of(0, 1);
  run_group(2, [&](Communicator& comm) {
    const int rank = comm.rank();
    auto slots = slots_of(placement, rank, world.packed);
    if (rank == 1) slots.back() = other.packed(DType::kF32);
    MoeLayer layer = world.layer(placement, rank);
    layer.replace(make_grouped_experts(slots, kHidden, DType::kF32, world.format()),
                  replicas_of(placement));
    Team team(1);
    OwnLane own(comm, layer, team);
    const std::vector<int32_t> token_ids = {0};
    std::vector<int32_t> counts(slots.size());
    outputs[rank] = forward(layer, x, own.lane, {.token_ids = token_ids, .local_counts = counts});
    EXPECT_EQ(counts[rank == 0 ? 0 : 2], 1) << "rank " << rank;
  });
  bring_together(outputs);
  // Equal tokens, equal weights of the router: they differ by what the replicas of expert 0 make of
  // the token.
  std::vector<double> first(kHidden, 0.0), second(kHidden, 0.0);
  world.experts[0].accumulate(x.data(), 1.0, first.data());
  other.accumulate(x.data(), 1.0, second.data());
  size_t h = 0;
  const double weight = (outputs[0][h] - outputs[1][h]) / (first[h] - second[h]);
  EXPECT_GT(std::abs(weight), 0.01);
  for (; h < kHidden; ++h) {
    EXPECT_NEAR(outputs[0][h] - outputs[1][h], weight * (first[h] - second[h]), 1e-4) << h;
  }
}

// Every rank's rows are what split_tokens() says, and the tokens' bits those of one rank.
TEST_P(SharedOut, LoadsAreThoseOfTheSplit) {
  constexpr int kRanks = 4;
  TRIMTAB_NEEDS_RANKS(kRanks);
  const World world = this->world(), alone({.shared = false, .zero_experts = 0});
  const Placement placement(1, kExperts, {2, 3, 2, 2}, {0, 1, 2, 0, 3, 4, 5, 1, 4}),
      single = Placement::linear(1, kExperts, 1);
  const auto table = replicas_of(placement);
  std::vector<std::vector<float>> picks(kRanks, std::vector<float>(kExperts)), rows(kRanks, {0.0F}),
      outputs(kRanks);
  run_group(kRanks, [&](Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(1);
    OwnLane own(comm, layer, team);
    const Capture capture = [&](int, int64_t, int, std::span<const int32_t> ids) {
      for (const int32_t e : ids) ++picks[rank][e];
    };
    std::vector<int32_t> counts(placement.slots_of_rank(comm.rank()));
    outputs[rank] = forward(layer, input_of(comm.rank(), tokens_of(comm.rank())), own.lane,
                            {.capture = &capture, .local_counts = counts});
    rows[rank][0] = static_cast<float>(std::accumulate(counts.begin(), counts.end(), 0));
  });
  bring_together(picks);
  bring_together(rows);
  bring_together(outputs);
  std::vector<int32_t> counts, shares(static_cast<size_t>(kRanks * placement.num_slots()));
  for (const auto& of_rank : picks) {
    for (const float count : of_rank) counts.push_back(static_cast<int32_t>(count));
  }
  Workspace workspace(split_workspace_bytes(*table));
  split_tokens(GetParam().split, *table, counts, workspace, shares, world.options.cost.get());
  std::vector<int64_t> loads(kRanks);
  split_rank_loads(*table, shares, loads);
  for (size_t r = 0; r < loads.size(); ++r)
    EXPECT_EQ(rows[r][0], static_cast<float>(loads[r])) << "rank " << r;
  for (int r = 0; r < kRanks; ++r) {
    run_ranks(1, [&](Communicator& comm) {
      const MoeLayer layer = alone.layer(single, 0);
      Team team(1);
      OwnLane own(comm, layer, team);
      EXPECT_EQ(outputs[r], forward(layer, input_of(r, tokens_of(r)), own.lane)) << "rank " << r;
    });
  }
}

class Replaced : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, Replaced, testing::ValuesIn(kWays),
                         [](const auto& param) { return param.param.name(); });

TEST_P(Replaced, ExpertsAndReplicasChangeBetweenCallsAndNoBitOfTheOutput) {
  constexpr int kRanks = 3;
  TRIMTAB_NEEDS_RANKS(kRanks);
  const World world({.dispatcher = GetParam().dispatcher, .split = GetParam().split});
  const Placement placements[] = {Placement(1, kExperts, {3, 3, 2}, {0, 1, 2, 3, 4, 5, 0, 1}),
                                  Placement(1, kExperts, {3, 3, 2}, {5, 5, 2, 0, 4, 1, 3, 2}),
                                  Placement(1, kExperts, {3, 3, 2}, {5, 4, 3, 3, 3, 2, 1, 0})};
  const bool exact = std::string(GetParam().dispatcher) != "all_gather" &&
                     std::string(GetParam().dispatcher) != "packed";
  run_group(kRanks, [&](Communicator& comm) {
    MoeLayer layer = world.layer(placements[0], comm.rank());
    Team team(1);
    OwnLane own(comm, layer, team);
    const std::vector<float> x = input_of(comm.rank(), tokens_of(comm.rank()));
    const std::vector<float> before = forward(layer, x, own.lane);
    for (int step = 1; step < 10; ++step) {
      const Placement& placement = placements[step % 3];
      layer.replace(experts_of(world, placement, comm.rank()), replicas_of(placement));
      if (GetParam().split == SplitRule::kTime) {
        const auto points = world.options.cost->points();
        layer.replace_cost(std::make_shared<const CostModel>(
            std::vector(points.begin(), points.end()),
            std::vector<int32_t>{1000, 250 * (step % 4 + 1), 1000}));
      }
      const std::vector<float> out = forward(layer, x, own.lane);
      expect_rows(world, x, out, "replaced");
      if (exact) {
        EXPECT_EQ(out, before) << "step " << step;
      }
    }
  });
}

TEST(ReplacedErrors, WhatDoesNotFitChangesNothing) {
  const World world({.split = SplitRule::kSplit});
  const Placement placement(1, kExperts, {kExperts + 1}, {0, 1, 2, 3, 4, 5, 0});
  const Placement fewer = Placement::linear(1, kExperts, 1);
  run_ranks(1, [&](Communicator& comm) {
    MoeLayer layer = world.layer(placement, 0);
    Team team(1);
    OwnLane own(comm, layer, team);
    const std::vector<float> x = input_of(0, 4);
    const std::vector<float> before = forward(layer, x, own.lane);
    const auto zeros = std::vector<float>(static_cast<size_t>(kInner * kHidden), 0.0F);
    const MlpSource nothing{.gate = matrix(zeros, kInner, kHidden),
                            .up = matrix(zeros, kInner, kHidden),
                            .down = matrix(zeros, kHidden, kInner),
                            .gate_bias = {},
                            .up_bias = {},
                            .down_bias = {}};
    const std::vector<std::shared_ptr<const Mlp>> zero_experts(
        kExperts + 1, std::make_shared<const Mlp>(nothing, Activation{}, Scheme::kF32));
    const std::shared_ptr<const Experts> others =
        make_grouped_experts(zero_experts, kHidden, Scheme::kF32);
    EXPECT_THROW(layer.replace(experts_of(world, fewer, 0), replicas_of(placement)),
                 InvalidArgument);
    EXPECT_THROW(layer.replace(others, replicas_of(fewer)), InvalidArgument);
    EXPECT_THROW(layer.replace(others, nullptr), InvalidArgument);
    EXPECT_THROW(layer.replace(nullptr, replicas_of(placement)), InvalidArgument);
    const auto of_two_ranks = std::make_shared<const CostModel>(std::vector<CostPoint>{{1, 1}},
                                                                std::vector<int32_t>{1000, 500});
    EXPECT_THROW(layer.replace_cost(of_two_ranks), InvalidArgument);
    EXPECT_EQ(forward(layer, x, own.lane), before);
    layer.replace(others, replicas_of(placement));
    EXPECT_NE(forward(layer, x, own.lane), before);
  });
}

}  // namespace
}  // namespace trimtab
