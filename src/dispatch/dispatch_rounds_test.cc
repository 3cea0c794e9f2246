// SPDX-License-Identifier: Apache-2.0
// Exchanges with a row budget: no rank ever gets more rows at once, all ranks make the same rounds,
// and the output has the bits that it has without a budget.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "base/cat.h"
#include "base/test_effort.h"
#include "comm/testing.h"
#include "dispatch/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr int64_t kMaxTokens = 24;
constexpr int kTopK = 4;
constexpr int kNumExperts = 12;

std::vector<const char*> kinds_with_budget() {
  std::vector<const char*> kinds(std::begin(kKinds), std::end(kKinds));
  std::erase_if(kinds, [](std::string_view kind) { return kind == "pull_batched"; });
  return kinds;
}

struct Run {
  std::vector<float> out;
  int64_t rounds = 0;
};

// A budget of 0 is none.
Run run_with_budget(const Scene& scene, const char* kind, int64_t budget) {
  Run run{std::vector<float>(scene.x.size())};
  std::vector<std::vector<float>> rounds(scene.ranks());
  run_scene_ranks(kind, scene.ranks(), [&](Communicator& comm) {
    DispatchShape shape =
        shape_of(scene, std::max(kMaxTokens, *std::ranges::max_element(scene.tokens)), scene.top_k);
    shape.row_budget = budget;
    const TestedDispatcher dispatcher(kind, shape, comm);
    if (budget > 0) {
      EXPECT_LE(dispatcher->max_rows(), budget);
    }
    Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
    poison(workspace);
    Team team(1 + comm.rank() % 2);
    Lane lane{comm, workspace, team, dispatcher.groups()};
    const auto rank = static_cast<size_t>(comm.rank());
    rounds[rank].push_back(
        static_cast<float>(exchange_once(scene, *dispatcher, lane, Left::kWeightAndSum, run.out)));
  });
  bring_together(scene, run.out);
  bring_together(rounds);
  EXPECT_TRUE(std::ranges::all_of(rounds, [&](const auto& r) { return r == rounds[0]; }));
  run.rounds = static_cast<int64_t>(rounds[0].at(0));
  return run;
}

// The most rows that a rank gets for the tokens of all ranks.
int64_t most_rows_of_a_rank(const Scene& scene) {
  if (scene.table) return *std::ranges::max_element(scene.rank_loads);
  std::vector<int64_t> rows(scene.ranks());
  for (int64_t t = 0; t < scene.all_tokens(); ++t) {
    for (int k = 0; k < scene.top_k; ++k) {
      const int32_t slot = scene.slot_of_pick(t, k);
      if (slot < 0) continue;
      const auto after = std::ranges::upper_bound(scene.slots.first, slot);
      ++rows[static_cast<size_t>(after - scene.slots.first.begin() - 1)];
    }
  }
  return *std::ranges::max_element(rows);
}

void expect_same_bits(const Scene& scene, const char* kind) {
  const Run whole = run_with_budget(scene, kind, 0);
  EXPECT_EQ(whole.rounds, 1);
  EXPECT_EQ(difference(scene, expect(scene), whole.out, scene.top_k + scene.ranks()), "");
  const int64_t least = int64_t{scene.ranks()} * scene.top_k, most = most_rows_of_a_rank(scene);
  // In turns: all rows just fit, or one is too many.
  const int64_t nearly = std::max(least, most - scene.all_tokens() % 2);
  for (const int64_t budget : {least, nearly}) {
    const Run run = run_with_budget(scene, kind, budget);
    EXPECT_EQ(run.rounds > 1, most > budget) << "budget " << budget << " of " << most;
    EXPECT_LE(run.rounds, 2 * kMaxTokens);
    ASSERT_EQ(run.out.size(), whole.out.size());
    EXPECT_TRUE(run.out.empty() ||
                std::memcmp(run.out.data(), whole.out.data(), run.out.size() * sizeof(float)) == 0)
        << "other bits with a budget of " << budget;
  }
}

using Parameters = std::tuple<const char*, int, Routes>;
class RowBudget : public testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override { TRIMTAB_SAMPLED_UNDER_SANITIZERS(3); }
};
std::string budget_test_name(const testing::TestParamInfo<Parameters>& info) {
  constexpr const char* kNames[] = {"uniform", "one_expert", "masked", "duplicates"};
  const auto& [kind, ranks, routes] = info.param;
  return cat(kind, "_", ranks, "_ranks_", kNames[static_cast<size_t>(routes)]);
}
INSTANTIATE_TEST_SUITE_P(All, RowBudget,
                         testing::Combine(testing::ValuesIn(kinds_with_budget()),
                                          testing::ValuesIn(rank_counts({1, 2, 4, 7})),
                                          testing::ValuesIn(kRoutes)),
                         budget_test_name);

// M12: bounded workspaces: experts and combine get rows in rounds of the budget.
TEST_P(RowBudget, GivesTheSameBitsInAsManyRoundsAsItTakes) {
  const auto& [kind, ranks, routes] = GetParam();
  // Full, uneven and without tokens on some ranks.
  std::vector<std::vector<int64_t>> counts(3, std::vector<int64_t>(ranks, kMaxTokens));
  for (size_t r = 0; r < counts[1].size(); ++r) {
    counts[1][r] = (5 + 7 * static_cast<int64_t>(r)) % (kMaxTokens + 1);
    if (r > 0) counts[2][r] = 0;
  }
  uint32_t seed = 0;
  for (const auto& tokens : counts) {
    Scene scene{.tokens = tokens, .num_experts = kNumExperts, .top_k = kTopK};
    scene.dtype = ++seed % 2 == 0 ? DType::kI8 : DType::kBF16;
    scene.slots = place(kPlacings[(seed + static_cast<uint32_t>(ranks)) % std::size(kPlacings)],
                        ranks, kNumExperts);
    fill(scene, routes, seed);
    SCOPED_TRACE(cat("tokens of the last rank: ", tokens.back()));
    expect_same_bits(scene, kind);
  }
}

// So many rows that answers come to stand where rows were (Tokens::y): as many as there is memory
// for, and one more, which makes two rounds.
TEST(RowBudgets, HoldWhereAnswersOverwriteRows) {
  constexpr int kRanks = 2;
  TRIMTAB_NEEDS_RANKS(kRanks);
  for (const char* kind : kinds_with_budget()) {
    for (const Routes routes : {Routes::kOneExpert, Routes::kUniform}) {
      Scene scene{.tokens = {2600, 2400}, .hidden = 9, .top_k = kTopK, .dtype = DType::kBF16};
      scene.slots = place(Placing::kPermuted, kRanks, scene.num_experts);
      fill(scene, routes, 3);
      const int64_t most = most_rows_of_a_rank(scene);
      ASSERT_GT(most, kRowsAtOnce);
      SCOPED_TRACE(cat(kind, ", routes ", static_cast<int>(routes)));
      const Expected expected = expect(scene);
      for (const int64_t budget : {most, most - 1}) {
        const auto run = run_with_budget(scene, kind, budget);
        EXPECT_EQ(run.rounds > 1, budget < most);
        EXPECT_EQ(difference(scene, expected, run.out, kTopK + kRanks), "");
      }
    }
  }
}

class SharedRowBudget : public testing::TestWithParam<std::tuple<const char*, int>> {};
INSTANTIATE_TEST_SUITE_P(All, SharedRowBudget,
                         testing::Combine(testing::Values("pull", "fused", "all_to_all"),
                                          testing::ValuesIn(rank_counts({1, 2, 4, 7}))),
                         [](const auto& chosen) {
                           return cat(std::get<0>(chosen.param), "_", std::get<1>(chosen.param),
                                      "_ranks");
                         });

// Picks shared out over replicas: the rule levels each round, and the budget counts what it leaves.
TEST_P(SharedRowBudget, CountsTheRowsThatTheRuleGives) {
  const auto& [kind, ranks] = GetParam();
  for (const SplitRule rule : kSplitRules) {
    for (const Routes routes : {Routes::kUniform, Routes::kOneExpert}) {
      Scene scene{.tokens = std::vector<int64_t>(ranks, kMaxTokens), .top_k = kTopK};
      scene.slots = place(Placing::kRedundant, ranks, scene.num_experts);
      fill(scene, routes, 11);
      share_out(scene, rule);
      SCOPED_TRACE(cat("rule ", name(rule), ", routes ", static_cast<int>(routes)));
      expect_same_bits(scene, kind);
    }
  }
}

TEST(RowBudgets, OfSlicesAreThoseOfTheInnerDispatcher) {
  for (const char* kind : {"pull", "all_to_all", "packed"}) {
    constexpr int kRanks = 4, kParts = 2;
    if (!can_have_ranks(kRanks)) continue;
    // What each tensor-parallel group holds.
    Scene scene{.tokens = std::vector<int64_t>(kRanks / kParts, kMaxTokens), .top_k = kTopK};
    scene.slots = place(Placing::kLinear, kRanks, scene.num_experts);
    fill(scene, Routes::kOneExpert, 5);
    const Expected expected = expect(scene);
    std::vector<std::vector<float>> outs(kRanks, std::vector<float>(scene.x.size()));
    run_scene_ranks(kind, kRanks, [&](Communicator& comm) {
      const auto group = comm.split(comm.rank() / kParts, comm.rank());
      DispatchShape shape = shape_of(scene, kMaxTokens / kParts, kTopK);
      shape.row_budget = 2 * kMaxTokens / kParts * kTopK;  // twice the level load
      const auto dispatcher =
          make_sliced_dispatcher(make_dispatcher(kind, shape, comm.rank()), kMaxTokens);
      EXPECT_EQ(dispatcher->max_rows(), shape.row_budget);
      Communicator* const groups[] = {group.get()};
      Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
      Team team(1);
      Lane lane{comm, workspace, team, groups};
      EXPECT_GE(exchange_once(scene, *dispatcher, lane, Left::kSum, outs[comm.rank()],
                              comm.rank() / kParts),
                2);
      std::vector<float> out = outs[comm.rank()];
      const int64_t own = comm.rank() / kParts;
      for (int64_t i = 0; i < std::ssize(out); ++i) {
        if (i / (kMaxTokens * scene.hidden) != own) {
          out[i] = static_cast<float>(expected.out[i]);
        }
      }
      EXPECT_EQ(difference(scene, expected, out, kTopK + kRanks), "") << kind;
    });
  }
}

TEST(RowBudgets, AreRefusedWhereTheyCantBeKept) {
  const std::vector<int32_t> first{0, 3, 6};
  DispatchShape shape{.max_tokens = 4, .hidden = 8, .top_k = 2, .first_slots = first};
  const auto error = [&](const char* kind) -> std::string {
    try {
      make_dispatcher(kind, shape, 0, std::vector<int32_t>{0, 0});
      return "";
    } catch (const InvalidArgument& e) {
      return e.what();
    }
  };
  shape.row_budget = 3;
  EXPECT_NE(error("pull").find("a row budget of 3 for 2 ranks"), std::string::npos);
  EXPECT_NE(error("pull").find("may bring 4 rows"), std::string::npos);
  shape.row_budget = -1;
  EXPECT_NE(error("packed").find("a row budget of -1"), std::string::npos);
  shape.row_budget = 4;
  for (const char* kind : {"pull", "fused", "all_to_all", "mc2", "packed", "all_gather", "hybrid"})
    EXPECT_EQ(error(kind), "") << kind;
  EXPECT_NE(error("grouped").find("exchange nothing"), std::string::npos);
  shape.capacity = 4;
  EXPECT_NE(error("pull_batched").find("its capacity bounds"), std::string::npos);
}

}  // namespace
}  // namespace trimtab
