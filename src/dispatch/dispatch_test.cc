// SPDX-License-Identifier: Apache-2.0
// Every dispatcher over ranks, placements, token counts, top-k, routings and dtypes, against sums made token by token;
// and `pull` bit by bit against itself on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "base/cat.h"
#include "dispatch/testing.h"

namespace trimtab {
namespace {

constexpr int64_t kMaxTokens = 24;
constexpr int kNumExperts = 12;

// The ways in which tokens are spread over ranks.
std::vector<std::vector<int64_t>> token_counts(int ranks) {
  const auto n = static_cast<size_t>(ranks);
  std::vector<std::vector<int64_t>> all{std::vector<int64_t>(n, 0), std::vector<int64_t>(n, 1), std::vector<int64_t>(n),
                                        std::vector<int64_t>(n, 0), std::vector<int64_t>(n, kMaxTokens)};
  for (size_t r = 0; r < n; ++r) all[2][r] = 5 + 3 * static_cast<int64_t>(r);
  all[3][n - 1] = 23;
  return all;
}

// What one scene gave on a number of ranks.
struct Result {
  std::vector<float> out;
};

// Runs all scenes, one after another on one workspace a rank.
std::vector<Result> run_scenes(const std::vector<Scene>& scenes, std::string_view name) {
  std::vector<Result> results;
  for (const Scene& s : scenes) results.push_back({std::vector<float>(static_cast<size_t>(s.all_tokens() * s.hidden))});
  int64_t max_tokens = 0;
  for (const Scene& s : scenes) max_tokens = std::max(max_tokens, *std::ranges::max_element(s.tokens));
  run_ranks(scenes.front().ranks(), [&](Communicator& comm) {
    const auto dispatcher = make_dispatcher(name, shape_of(scenes.front(), max_tokens, kNumExperts), comm.rank());
    Workspace workspace(dispatcher->workspace_bytes());
    Team team(1 + comm.rank() % 2);
    Lane lane{comm, workspace, team};
    for (size_t i = 0; i < scenes.size(); ++i) {
      poison(workspace);
      exchange_once(scenes[i], *dispatcher, lane, i % 2 == 0 ? Left::kWeightAndSum : Left::kSum, results[i].out);
      workspace.release(0);
    }
  });
  return results;
}

// The scene on one rank with experts in order.
Scene on_one_rank(Scene scene) {
  scene.tokens = {scene.all_tokens()};
  scene.slots = place(Placing::kLinear, 1, scene.num_experts);
  return scene;
}

using Parameters = std::tuple<const char*, int, Placing, DType>;
class DispatchMatrix : public testing::TestWithParam<Parameters> {};

std::string parameter_name(const testing::TestParamInfo<Parameters>& info) {
  constexpr const char* kNames[] = {"linear", "permuted", "redundant", "everywhere", "first_rank_empty"};
  const auto& [dispatcher, ranks, placing, dtype] = info.param;
  return cat(dispatcher, "_", ranks, "_ranks_", kNames[static_cast<size_t>(placing)], "_", name(dtype));
}

INSTANTIATE_TEST_SUITE_P(All, DispatchMatrix,
                         testing::Combine(testing::Values("pull", "all_gather"), testing::Values(1, 2, 3, 4, 7),
                                          testing::ValuesIn(kPlacings), testing::Values(DType::kF32, DType::kBF16)),
                         parameter_name);

TEST_P(DispatchMatrix, GivesTheSumOverPicks) {
  const auto& [dispatcher, ranks, placing, dtype] = GetParam();
  std::vector<Scene> scenes, single;
  std::vector<std::string> labels;
  uint32_t seed = 1;
  for (const auto& tokens : token_counts(ranks)) {
    for (const int top_k : {1, 3, 8, kNumExperts}) {
      for (const Routes routes : kRoutes) {
        for (const bool on_input : {false, true}) {
          if (on_input && top_k != 1) continue;
          Scene scene{.tokens = tokens, .num_experts = kNumExperts, .top_k = top_k, .dtype = dtype};
          scene.weight_on_input = on_input;
          scene.slots = place(placing, ranks, kNumExperts);
          fill(scene, routes, ++seed);
          labels.push_back(cat("tokens of the last rank ", tokens.back(), ", top_k ", top_k, ", routes ",
                               static_cast<int>(routes), ", weight_on_input ", on_input, ", seed ", seed));
          single.push_back(on_one_rank(scene));
          scenes.push_back(std::move(scene));
        }
      }
    }
  }
  const bool exact = std::string_view(dispatcher) == "pull";
  const std::vector<Result> results = run_scenes(scenes, dispatcher);
  const std::vector<Result> alone = exact ? run_scenes(single, dispatcher) : std::vector<Result>();
  for (size_t i = 0; i < scenes.size(); ++i) {
    const int additions = scenes[i].top_k + (exact ? 0 : ranks);
    EXPECT_EQ(difference(scenes[i], expect(scenes[i]), results[i].out, additions), "") << labels[i];
    if (exact && !results[i].out.empty()) {
      const size_t bytes = results[i].out.size() * sizeof(float);
      EXPECT_EQ(std::memcmp(results[i].out.data(), alone[i].out.data(), bytes), 0) << "other bits: " << labels[i];
    }
  }
}

class EachDispatcher : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, EachDispatcher, testing::Values("pull", "all_gather"),
                         [](const auto& chosen) { return std::string(chosen.param); });

// Rows must stand by expert, source rank, token and pick; x carries the number of its token.
TEST_P(EachDispatcher, RowsStandByExpertThenSourceThenPosition) {
  constexpr int kRanks = 3;
  Scene scene{.tokens = {6, 0, 9}, .num_experts = kNumExperts, .hidden = 2, .top_k = 5};
  scene.slots = place(Placing::kRedundant, kRanks, kNumExperts);
  fill(scene, Routes::kDuplicates, 3);
  for (int64_t t = 0; t < scene.all_tokens(); ++t) scene.x[static_cast<size_t>(2 * t)] = static_cast<float>(t);
  run_ranks(kRanks, [&](Communicator& comm) {
    const auto dispatcher = make_dispatcher(GetParam(), shape_of(scene, kMaxTokens, 5), comm.rank());
    Workspace workspace(dispatcher->workspace_bytes());
    Team team(2);
    Lane lane{comm, workspace, team};
    RankCall call(scene, *dispatcher, lane);
    call.exchange().wait(Stage::kArrived);
    const Tokens& tokens = call.exchange().tokens();
    EXPECT_EQ(tokens.format, Format::kStandard);
    std::vector<float> expected, weights, got;
    std::vector<int32_t> counts;
    const auto rank = static_cast<size_t>(comm.rank());
    for (int32_t slot = scene.slots.first[rank]; slot < scene.slots.first[rank + 1]; ++slot) {
      const size_t before = expected.size();
      for (int64_t t = 0; t < scene.all_tokens(); ++t) {
        for (int k = 0; k < scene.top_k; ++k) {
          if (scene.slot_of_pick(t, k) != slot) continue;
          expected.push_back(static_cast<float>(t));
          weights.push_back(scene.weights[static_cast<size_t>(t * scene.top_k + k)]);
        }
      }
      counts.push_back(static_cast<int32_t>(expected.size() - before));
    }
    for (int64_t row = 0; row < tokens.x.rows; ++row) got.push_back(tokens.x.row_as<float>(row)[0]);
    EXPECT_EQ(got, expected);
    EXPECT_TRUE(std::ranges::equal(tokens.counts, counts));
    EXPECT_TRUE(std::ranges::equal(tokens.weights, weights));
    std::vector<float> out(scene.x.size());
    call.compute(Left::kSum);
    call.exchange().wait(Stage::kReturned);
    call.finish(out);
    call.exchange().wait(Stage::kDrained);
  });
}

// The promised worst case: every pick of every rank to one rank. It fits to the byte.
TEST_P(EachDispatcher, WorstCaseFitsExactly) {
  constexpr int kRanks = 3;
  Scene scene{.tokens = {8, 8, 8}, .num_experts = kNumExperts, .top_k = 4, .dtype = DType::kBF16};
  scene.slots = place(Placing::kLinear, kRanks, kNumExperts);
  fill(scene, Routes::kOneExpert, 5);
  std::vector<float> out(scene.x.size());
  const auto slot = std::ranges::find(scene.slots.logical, kNumExperts / 2) - scene.slots.logical.begin();
  run_ranks(kRanks, [&](Communicator& comm) {
    const auto dispatcher = make_dispatcher(GetParam(), shape_of(scene, 8, 4), comm.rank());
    EXPECT_EQ(dispatcher->max_rows(), kRanks * 8 * 4);
    Workspace workspace(dispatcher->workspace_bytes());
    EXPECT_EQ(workspace.capacity(), dispatcher->workspace_bytes());
    Team team(1);
    Lane lane{comm, workspace, team};
    RankCall call(scene, *dispatcher, lane);
    EXPECT_EQ(workspace.peak(), workspace.capacity());
    call.exchange().wait(Stage::kArrived);
    const auto rank = static_cast<size_t>(comm.rank());
    const bool owner = scene.slots.first[rank] <= slot && slot < scene.slots.first[rank + 1];
    EXPECT_EQ(call.exchange().tokens().x.rows, owner ? dispatcher->max_rows() : 0);
    call.compute(Left::kWeightAndSum);
    call.exchange().wait(Stage::kReturned);
    call.finish(out);
    call.exchange().wait(Stage::kDrained);
  });
  EXPECT_EQ(difference(scene, expect(scene), out, scene.top_k + kRanks), "");
}

TEST_P(EachDispatcher, ARankWithoutSlotsNeedsNoRows) {
  const std::vector<int32_t> first{0, 0, 4};
  const DispatchShape shape{16, 8, 2, DType::kF32, first};
  EXPECT_EQ(make_dispatcher(GetParam(), shape, 0)->max_rows(), 0);
  EXPECT_EQ(make_dispatcher(GetParam(), shape, 1)->max_rows(), 2 * 16 * 2);
}

TEST_P(EachDispatcher, SaysWhatItIs) {
  const std::vector<int32_t> first{0, 4};
  const auto dispatcher = make_dispatcher(GetParam(), {16, 8, 2, DType::kF32, first}, 0);
  EXPECT_EQ(dispatcher->name(), GetParam());
  EXPECT_EQ(dispatcher->format(), Format::kStandard);
  EXPECT_TRUE(dispatcher->carries_weights());
  EXPECT_TRUE(dispatcher->output_is_reduced());
}

uint32_t property_seed() {
  const char* text = std::getenv("TRIMTAB_TEST_SEED");
  return text == nullptr ? 20240607U : static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
}

// Random sizes, placements, routings. TRIMTAB_TEST_SEED repeats one that failed.
TEST_P(EachDispatcher, RandomScenes) {
  for (uint32_t seed = property_seed(); seed < property_seed() + 40; ++seed) {
    SCOPED_TRACE(cat("TRIMTAB_TEST_SEED=", seed));
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    Scene scene;
    const int ranks = pick(1, 6);
    for (int r = 0; r < ranks; ++r) scene.tokens.push_back(pick(0, 2) == 0 ? 0 : pick(0, 40));
    scene.num_experts = pick(ranks > 1 ? ranks - 1 : 1, kNumExperts);
    scene.hidden = pick(1, 70);
    scene.top_k = pick(1, scene.num_experts);
    scene.dtype = pick(0, 1) == 0 ? DType::kF32 : DType::kBF16;
    scene.weight_on_input = scene.top_k == 1 && pick(0, 1) == 0;
    scene.slots = place(kPlacings[static_cast<size_t>(pick(0, 4))], ranks, scene.num_experts);
    fill(scene, kRoutes[static_cast<size_t>(pick(0, 3))], seed);
    const std::vector<Result> results = run_scenes({scene}, GetParam());
    EXPECT_EQ(difference(scene, expect(scene), results[0].out, scene.top_k + ranks), "");
    if (std::string_view(GetParam()) != "pull" || results[0].out.empty()) continue;
    const std::vector<Result> alone = run_scenes({on_one_rank(scene)}, GetParam());
    EXPECT_EQ(std::memcmp(results[0].out.data(), alone[0].out.data(), results[0].out.size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace trimtab
