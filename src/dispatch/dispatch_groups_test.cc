// SPDX-License-Identifier: Apache-2.0
// Dispatchers for ranks that hold the same tokens: `grouped`, whose outputs are parts of a sum, and
// slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "dispatch/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Of all ranks' scene, the same `tokens` on each of `ranks` ranks.
Scene same_on_all(const Scene& scene, int ranks) {
  Scene all = scene;
  all.tokens.assign(ranks, scene.all_tokens());
  for (int r = 1; r < ranks; ++r) {
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(all.ids, scene.ids);
    append(all.weights, scene.weights);
    append(all.x, scene.x);
    append(all.rows, scene.rows);
    append(all.scales, scene.scales);
  }
  return all;
}

class Grouped : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Grouped, testing::Values(1, 2, 3, 4, 8),
                         testing::PrintToStringParamName());

// D4: experts in groups, one group a rank, the same number of picks on each rank, no exchange of
//     tokens.
// B16: a mistake made elsewhere: grouped experts: fewer picks than ranks, sorting row numbers as
//     floats, weights before a biased matrix.
TEST_P(Grouped, TheRanksOutputsAddUpToTheSumOverPicks) {
  const int ranks = GetParam();
  for (const Routes routes : kRoutes) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
      for (const int top_k :
           {1, 3, 12}) {  // fewer picks than groups, picks that the groups do not share evenly
        Scene one{.tokens = {11}, .hidden = 32, .top_k = top_k, .dtype = dtype};
        one.weight_on_input = top_k == 1 && dtype != DType::kF8E4M3;
        one.slots = place(Placing::kPermuted, ranks, one.num_experts);
        fill(one, routes, 17);
        const Scene scene = same_on_all(one, ranks);
        std::vector<float> outs(scene.x.size());
        run_ranks(ranks, [&](Communicator& comm) {
          const auto dispatcher = make_grouped_dispatcher(shape_of(scene, 11, top_k), comm.rank());
          EXPECT_FALSE(dispatcher->output_is_reduced());
          EXPECT_LE(dispatcher->max_rows(), 11 * top_k);
          Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
          poison(workspace);
          Team team(2);
          Lane lane{comm, workspace, team};
          exchange_once(scene, *dispatcher, lane, top_k == 3 ? Left::kWeightAndSum : Left::kSum,
                        outs);
        });
        std::vector<float> sum(one.x.size());
        for (size_t i = 0; i < outs.size(); ++i) sum[i % sum.size()] += outs[i];
        EXPECT_EQ(difference(one, expect(one), sum, top_k + ranks), "") << "top_k " << top_k;
      }
    }
  }
}

using SlicedParameters =
    std::tuple<const char*, int, int>;  // inner kind, tensor-parallel ranks, groups of them
class Sliced : public testing::TestWithParam<SlicedParameters> {};
INSTANTIATE_TEST_SUITE_P(All, Sliced,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Values(1, 2, 3),
                                          testing::Values(1, 2)));

// P1: tensor-parallel ranks that all hold the same tokens each take a slice, possibly empty, and
//     gather the outputs into a fresh buffer.
// The ranks of a tensor-parallel group hold the same tokens; every one gets all outputs, with the
// bits of its inner dispatcher, also where there are fewer tokens than ranks.
TEST_P(Sliced, EveryRankGetsTheOutputsOfAllSlices) {
  const auto& [kind, tp, dp] = GetParam();
  const int ranks = tp * dp;
  for (const int64_t tokens : {0, 1, 5, 13}) {
    for (const DType dtype : {DType::kBF16, DType::kI8}) {
      // What each data-parallel group holds, as if each were one rank.
      Scene by_group{.tokens = std::vector<int64_t>(dp, tokens), .top_k = 3, .dtype = dtype};
      by_group.slots = place(Placing::kRedundant, ranks, by_group.num_experts);
      if (dp > 1) by_group.tokens[1] = tokens / 2;
      fill(by_group, Routes::kUniform, 3);
      const Expected expected = expect(by_group);
      // The helpers take a scene's tokens by rank: here rank r reads those of group r / tp.
      std::vector<std::vector<float>> outs(ranks, std::vector<float>(by_group.x.size()));
      run_scene_ranks(kind, ranks, [&, kind = kind, tp = tp](Communicator& comm) {
        const auto group = comm.split(comm.rank() / tp, comm.rank());
        TestedDispatcher inner(kind, shape_of(by_group, (13 + tp - 1) / tp, 3), comm);
        std::vector<Communicator*> groups(inner.groups().begin(), inner.groups().end());
        groups.push_back(group.get());
        const auto dispatcher = make_sliced_dispatcher(inner.take(), 13);
        EXPECT_EQ(dispatcher->shape().max_tokens, 13);
        Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
        poison(workspace);
        Team team(1);
        Lane lane{comm, workspace, team, groups};
        exchange_once(by_group, *dispatcher, lane, Left::kSum, outs[comm.rank()], comm.rank() / tp);
        EXPECT_EQ(workspace.peak(), workspace.capacity());
      });
      for (int g = 0; g < dp; ++g) {
        const auto first = static_cast<size_t>(by_group.first_token(g) * by_group.hidden);
        const auto bytes =
            static_cast<size_t>(by_group.tokens[g] * by_group.hidden) * sizeof(float);
        for (int r = g * tp + 1; r < (g + 1) * tp && bytes > 0; ++r) {
          EXPECT_EQ(std::memcmp(outs[static_cast<size_t>(g * tp)].data() + first,
                                outs[r].data() + first, bytes),
                    0);
        }
      }
      std::vector<float> all = outs[0];
      if (dp > 1)
        std::copy(outs.back().begin() + by_group.first_token(1) * by_group.hidden,
                  outs.back().end(), all.begin() + by_group.first_token(1) * by_group.hidden);
      EXPECT_EQ(difference(by_group, expected, all, 3 + ranks), "") << tokens << " tokens";
    }
  }
}

// P1: more slices than ranks that hold the experts: each of three ranks has all of them.
TEST(SlicedDispatcher, SlicesMayBeMoreThanTheRanksOfTheInnerOne) {
  constexpr int kRanks = 3;
  Scene scene{.tokens = {7}, .top_k = 2, .dtype = DType::kF32};
  scene.slots = place(Placing::kLinear, 1, scene.num_experts);
  fill(scene, Routes::kUniform, 5);
  const Expected expected = expect(scene);
  run_ranks(kRanks, [&](Communicator& comm) {
    const auto alone = comm.split(comm.rank(), 0);
    const auto dispatcher =
        make_sliced_dispatcher(make_pull_dispatcher(shape_of(scene, 3, 2), 0), 7, kRanks);
    Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
    poison(workspace);
    Team team(1);
    Communicator* group = &comm;
    Lane lane{*alone, workspace, team, {&group, 1}};
    std::vector<float> out(scene.x.size());
    exchange_once(scene, *dispatcher, lane, Left::kSum, out);
    EXPECT_EQ(difference(scene, expected, out, 3), "");
    const auto fewer =
        make_sliced_dispatcher(make_pull_dispatcher(shape_of(scene, 4, 2), 0), 7, kRanks - 1);
    EXPECT_THROW(fewer->dispatch({ConstRows(scene.x.data(), 0, scene.hidden)}, lane),
                 InvalidArgument);
  });
}

TEST(SlicedDispatcher, RefusesPartsOfSumsAndLanesWithoutTheGroup) {
  const std::vector<int32_t> first{0, 4};
  const DispatchShape shape{4, 8, 2, DType::kF32, first};
  EXPECT_THROW(make_sliced_dispatcher(make_grouped_dispatcher(shape, 0), 4), InvalidArgument);
  run_ranks(1, [&](Communicator& comm) {
    const auto dispatcher = make_sliced_dispatcher(make_pull_dispatcher(shape, 0), 4);
    Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
    Team team(1);
    Lane lane{comm, workspace, team};
    EXPECT_THROW(dispatcher->dispatch({ConstRows(first.data(), 0, 8)}, lane), InvalidArgument);
    Communicator* const groups[] = {&comm};
    Lane grouped{comm, workspace, team, groups};
    EXPECT_THROW(dispatcher->dispatch({}, grouped), InvalidArgument);  // no shape
    EXPECT_EQ(workspace.mark(), 0U);
  });
}

// Their slices would not belong together.
TEST(SlicedDispatcher, RanksWithOtherBatchesAreRefusedOnEachRank) {
  const std::vector<int32_t> first{0, 2, 4};
  run_ranks(2, [&](Communicator& comm) {
    const int rank = comm.rank();
    const int64_t tokens = 3 + rank;
    const auto dispatcher =
        make_sliced_dispatcher(make_pull_dispatcher({2, 8, 1, DType::kF32, first}, rank), 4);
    Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
    Team team(1);
    const auto group = comm.duplicate();
    Communicator* const groups[] = {group.get()};
    Lane lane{comm, workspace, team, groups};
    const std::vector<float> x(tokens * 8), weights(tokens, 1.0F);
    const std::vector<int32_t> ids(tokens, 1);
    const ExchangePtr exchange =
        dispatcher->dispatch({ConstRows(x.data(), tokens, 8), ids, weights, 1}, lane);
    try {
      exchange->wait(Stage::kArrived);
      ADD_FAILURE() << "rank " << rank << " goes on with " << tokens << " tokens";
    } catch (const InvalidArgument& error) {
      const std::string expected = "comes with " + std::to_string(tokens) + " tokens, rank " +
                                   std::to_string(1 - rank) + " with " + std::to_string(4 - rank);
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  });
}

// Between two hosts of three ranks each rank takes the tokens of one rank of the other host beside
// its own. Were all to come through one, its exchange inside the host alone would take more memory
// than all of a hybrid exchange does.
TEST(HybridDispatcher, RanksOfAHostTakeTurns) {
  const std::vector<int32_t> first{0, 2, 4, 6, 8, 10, 12}, on_host{0, 2, 4, 6},
      hosts{0, 0, 0, 1, 1, 1};
  const DispatchShape through_one{4 * 64, 256, 4, DType::kF32, on_host};
  for (int rank = 0; rank < 6; ++rank) {
    const auto hybrid = make_hybrid_dispatcher({64, 256, 4, DType::kF32, first}, hosts, rank);
    EXPECT_LT(hybrid->workspace_bytes(), make_pull_dispatcher(through_one, 0)->workspace_bytes());
  }
}

}  // namespace
}  // namespace trimtab
