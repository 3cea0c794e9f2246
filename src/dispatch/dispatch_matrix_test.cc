// SPDX-License-Identifier: Apache-2.0
// Every dispatcher over ranks, placements, token counts, top-k, routings and types of rows, against
// sums made token by token; and those that keep the order bit by bit against `pull` on one rank.
// TRIMTAB_HEAVY=1: every type of rows with each of the others, and 100,000 random calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "base/cat.h"
#include "base/test_effort.h"
#include "comm/testing.h"
#include "dispatch/testing.h"

namespace trimtab {
namespace {

constexpr int64_t kMaxTokens = 24;
constexpr int kNumExperts = 12;
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3};

// Sanitizers make a scene 10 to 20 times as slow, and more processes than cores wait for each
// other: they see every fifth.
uint32_t every() {
  return (kSanitized || ranks_are_processes()) && !heavy_tests() ? 5 : 1;
}

// The ways in which tokens are spread over ranks.
std::vector<std::vector<int64_t>> token_counts(int ranks) {
  const auto n = static_cast<size_t>(ranks);
  std::vector<std::vector<int64_t>> all{std::vector<int64_t>(n, 0), std::vector<int64_t>(n, 1),
                                        std::vector<int64_t>(n), std::vector<int64_t>(n, 0),
                                        std::vector<int64_t>(n, kMaxTokens)};
  for (size_t r = 0; r < n; ++r) all[2][r] = std::min(kMaxTokens, 5 + 3 * static_cast<int64_t>(r));
  all[3][n - 1] = 23;
  return all;
}

// The outputs of all scenes, run one after another on one workspace a rank.
std::vector<std::vector<float>> run_scenes(const std::vector<Scene>& scenes,
                                           std::string_view kind) {
  std::vector<std::vector<float>> outs;
  int64_t max_tokens = 0, capacity = 1;
  for (const Scene& s : scenes) {
    outs.emplace_back(s.x.size());
    max_tokens = std::max(max_tokens, *std::ranges::max_element(s.tokens));
    capacity = std::max(capacity, most_rows_of_a_slot(s));
  }
  run_scene_ranks(kind, scenes.front().ranks(), [&](Communicator& comm) {
    const TestedDispatcher dispatcher(
        kind, shape_of(scenes.front(), max_tokens, kNumExperts, capacity), comm);
    Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
    Team team(1 + comm.rank() % 2);
    Lane lane{comm, workspace, team, dispatcher.groups()};
    for (size_t i = 0; i < scenes.size(); ++i) {
      poison(workspace);
      exchange_once(scenes[i], *dispatcher, lane, left_of_turn(*dispatcher, i), outs[i]);
      workspace.release(0);
    }
  });
  for (size_t i = 0; i < scenes.size(); ++i) bring_together(scenes[i], outs[i]);
  return outs;
}

// The scene on one rank with experts in order.
Scene on_one_rank(Scene scene) {
  scene.tokens = {scene.all_tokens()};
  scene.slots = place(Placing::kLinear, 1, scene.num_experts);
  scene.table = nullptr;
  return scene;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Scenes of all token counts, top-k and routings.
std::vector<Scene> all_scenes(int ranks, Placing placing, DType dtype,
                              std::vector<std::string>& labels) {
  std::vector<Scene> scenes;
  uint32_t seed = 0;
  for (const auto& tokens : token_counts(ranks)) {
    for (const int top_k : {1, 3, 8, kNumExperts}) {
      for (const Routes routes : kRoutes) {
        for (const bool on_input : {false, true}) {
          if (++seed % every() != 0 || (on_input && (top_k != 1 || dtype == DType::kF8E4M3)))
            continue;
          Scene scene{.tokens = tokens, .num_experts = kNumExperts, .top_k = top_k, .dtype = dtype};
          if (dtype == DType::kF8E4M3) scene.hidden = 64;
          scene.weight_on_input = on_input;
          scene.slots = place(placing, ranks, kNumExperts);
          fill(scene, routes, seed);
          labels.push_back(cat(name(dtype), ", tokens of the last rank ", tokens.back(), ", top_k ",
                               top_k, ", routes ", static_cast<int>(routes), ", weight_on_input ",
                               on_input, ", seed ", seed));
          scenes.push_back(std::move(scene));
        }
      }
    }
  }
  return scenes;
}

using Parameters = std::tuple<const char*, int, Placing>;
class Matrix : public testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override { TRIMTAB_SAMPLED_UNDER_SANITIZERS(3); }
};
class DispatchMatrix : public Matrix {};

std::string parameter_name(const testing::TestParamInfo<Parameters>& info) {
  constexpr const char* kNames[] = {"linear",     "permuted",         "redundant",
                                    "everywhere", "first_rank_empty", "twins"};
  const auto& [kind, ranks, placing] = info.param;
  return cat(kind, "_", ranks, "_ranks_", kNames[static_cast<size_t>(placing)]);
}

INSTANTIATE_TEST_SUITE_P(All, DispatchMatrix,
                         testing::Combine(testing::ValuesIn(kKinds),
                                          testing::ValuesIn(rank_counts({1, 2, 3, 4, 8})),
                                          testing::ValuesIn(kPlacings)),
                         parameter_name);

// P2: padding rows are data that nobody computes, not dummy rows that travel.
// P3: ranks with different numbers of tokens, without padding to a common size.
// P4: all-gather for data-parallel ranks: true counts, partial sums added in f32 and scattered back
//     to the owners.
// P6: a further gather over context-parallel ranks, undone in reverse order.
// P9: the router runs on local tokens and ids and weights are gathered (8 bytes a pick), not the
//     logits; shared experts run meanwhile.
// C1: a model without experts, or one rank, needs no exchange.
// D1: all-gather: every rank gets every token, keeps its experts' picks and sums them with weights.
// D2: all-to-all: rows sent to their experts and back, dropless; no tokens, nothing received, one
//     expert, one rank all work.
// D3: a bounded capacity per rank and a mask of real tokens.
// D5: dispatch, experts and combine as one pass, expert by expert.
// D6: quantised rows on the way (int8, mxfp8) with their scales.
// D7: the weight multiplies the row before the experts (top-1 only), and is not applied again.
// D8: an expert that stands twice in a token's picks is computed and added twice.
// D9: more picks than a rank has experts.
// D10: a token with several picks on one rank is sent there once.
// D11: rows in a fixed order; sums in the order of the picks, in f32: bits do not depend on ranks
//     or placement (pull); all_gather within a bound.
// K7: who weighs and sums: the combine, the experts (weights), or nobody (already one row a token).
// B2: a mistake made elsewhere: padding rows are routed like tokens and load the first experts.
// B3: a mistake made elsewhere: local experts found through a map of the wrong length: own experts
//     masked out, -1 wraps round.
// B5: a mistake made elsewhere: rows of other ranks are multiplied by 0: 0 x NaN of unset memory.
// B6: a mistake made elsewhere: weight on the input applied twice, or the flag ignored.
// B11: a mistake made elsewhere: gathers undone in the wrong order.
// B12: a mistake made elsewhere: a gather whose scatter is skipped by another flag.
// B14: a mistake made elsewhere: one mask for all steps, changed in place, too short for some.
// B15: a mistake made elsewhere: a special case for one local expert drops scales; a histogram
//     ignores negative ids and the sort does not.
// B28: a mistake made elsewhere: the combine scales the experts' output in place; fails on an
//     expert picked twice.
TEST_P(DispatchMatrix, GivesTheSumOverPicks) {
  const auto& [kind, ranks, placing] = GetParam();
  const auto turn =
      (static_cast<size_t>(ranks) + static_cast<size_t>(placing)) % std::size(kDTypes);
  for (const DType dtype : kDTypes) {
    if (dtype != kDTypes[turn] && !heavy_tests()) continue;
    std::vector<std::string> labels;
    const std::vector<Scene> scenes = all_scenes(ranks, placing, dtype, labels);
    const auto outs = run_scenes(scenes, kind);
    std::vector<std::vector<float>> alone;
    if (is_exact(kind)) {
      std::vector<Scene> single;
      for (const Scene& scene : scenes) single.push_back(on_one_rank(scene));
      alone = run_scenes(single, "pull");
    }
    for (size_t i = 0; i < scenes.size(); ++i) {
      const int additions = scenes[i].top_k + (is_exact(kind) ? 0 : ranks);
      EXPECT_EQ(difference(scenes[i], expect(scenes[i]), outs[i], additions), "") << labels[i];
      if (is_exact(kind)) {
        EXPECT_TRUE(same_bits(outs[i], alone[i])) << "other bits: " << labels[i];
      }
    }
  }
}

// Results that travel in other types than F32: within what rounding each row once may change, and
// rounded at all; the bits of exact dispatchers do not depend on ranks or placement.
constexpr const char* kSendingKinds[] = {"all_to_all", "mc2", "packed_exact", "packed", "hybrid"};
class ResultsMatrix : public Matrix {};
INSTANTIATE_TEST_SUITE_P(All, ResultsMatrix,
                         testing::Combine(testing::ValuesIn(kSendingKinds),
                                          testing::ValuesIn(rank_counts({1, 2, 4})),
                                          testing::Values(Placing::kPermuted, Placing::kRedundant)),
                         parameter_name);

// The part of a row's largest element by which rounding may change any element. F8_E4M3 has 3 bits
// behind the leading one, and ends at 7/8 of what its scale can ask for.
double rounding_of(DType results) {
  return results == DType::kBF16 ? 0x1p-8 : results == DType::kI8 ? 1.0 / 254 : 0x1p-3;
}

// Empty if all elements are within the rounding of rows whose magnitudes add up to the expected.
// Their largest elements may be in different columns: twice that.
std::string beyond_rounding(const Scene& scene, const std::vector<float>& out) {
  const Expected expected = expect(scene);
  for (int64_t t = 0; t < scene.all_tokens(); ++t) {
    const auto first = static_cast<size_t>(t * scene.hidden);
    const auto row = std::span(expected.magnitude).subspan(first, scene.hidden);
    const double bound = 2 * rounding_of(scene.results) * std::ranges::max(row);
    for (size_t i = first; i < first + row.size(); ++i) {
      if (std::abs(out[i] - expected.out[i]) <= bound) continue;
      return cat("token ", t, ": ", out[i], ", expected ", expected.out[i], " +- ", bound);
    }
  }
  return "";
}

// D6: quantised rows on the way (int8, mxfp8) with their scales: those that come back too.
TEST_P(ResultsMatrix, AreWithinTheRoundingOfARow) {
  const auto& [kind, ranks, placing] = GetParam();
  for (const DType results : {DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    std::vector<std::string> labels;
    std::vector<Scene> scenes = all_scenes(ranks, placing, DType::kF32, labels), single;
    for (Scene& scene : scenes) {
      scene.hidden = 64;
      fill(scene, Routes::kMasked, 5);
      scene.results = results;
      single.push_back(on_one_rank(scene));
    }
    const auto outs = run_scenes(scenes, kind);
    const auto alone = is_exact(kind) ? run_scenes(single, kind) : outs;
    for (size_t i = 0; i < scenes.size(); ++i) {
      EXPECT_EQ(beyond_rounding(scenes[i], outs[i]), "") << labels[i];
      EXPECT_TRUE(same_bits(outs[i], alone[i])) << "other bits: " << labels[i];
      const bool rounded = difference(scenes[i], expect(scenes[i]), outs[i], 20) != "";
      EXPECT_TRUE(rounded || scenes[i].all_tokens() < 5) << labels[i];
    }
  }
}

// Picks shared out over replicas by the dispatcher.
constexpr Placing kReplicated[] = {Placing::kRedundant, Placing::kEverywhere, Placing::kTwins,
                                   Placing::kFirstRankEmpty};
class SharingMatrix : public Matrix {};
INSTANTIATE_TEST_SUITE_P(All, SharingMatrix,
                         testing::Combine(testing::ValuesIn(kSharingKinds),
                                          testing::ValuesIn(rank_counts({1, 2, 3, 4, 7})),
                                          testing::ValuesIn(kReplicated)),
                         parameter_name);

// Runs the scenes, and compares the rows that each rank and slot gets with what the rule says.
std::vector<std::vector<float>> run_shared(const std::vector<Scene>& scenes, const char* kind) {
  std::vector<std::vector<float>> outs;
  int64_t capacity = 1;
  for (const Scene& s : scenes) {
    outs.emplace_back(s.x.size());
    capacity = std::max(capacity, most_rows_of_a_slot(s));
  }
  run_scene_ranks(kind, scenes.front().ranks(), [&](Communicator& comm) {
    const TestedDispatcher dispatcher(
        kind, shape_of(scenes.front(), kMaxTokens, kNumExperts, capacity), comm);
    EXPECT_TRUE(dispatcher->shares_out());
    Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
    Team team(1 + comm.rank() % 2);
    Lane lane{comm, workspace, team, dispatcher.groups()};
    const auto rank = static_cast<size_t>(comm.rank());
    for (size_t i = 0; i < scenes.size(); ++i) {
      poison(workspace);
      RankCall call(scenes[i], *dispatcher, lane);
      call.exchange().wait(Stage::kArrived);
      const std::span<const int32_t> counts = call.exchange().tokens().counts;
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                scenes[i].rank_loads[rank])
          << "scene " << i;
      for (size_t local = 0; local < counts.size(); ++local) {
        const auto slot = scenes[i].slots.first[rank] + static_cast<int32_t>(local);
        EXPECT_EQ(counts[local], std::ranges::count(scenes[i].slot_ids, slot))
            << "scene " << i << ", slot " << slot;
      }
      call.compute(left_of_turn(*dispatcher, i));
      call.exchange().wait(Stage::kReturned);
      call.finish(outs[i]);
      call.exchange().wait(Stage::kDrained);
      workspace.release(0);
    }
  });
  for (size_t i = 0; i < scenes.size(); ++i) bring_together(scenes[i], outs[i]);
  return outs;
}

TEST_P(SharingMatrix, GivesTheSumsOfOneRankAndTheLoadsOfTheRule) {
  const auto& [kind, ranks, placing] = GetParam();
  const DType dtype =
      kDTypes[(static_cast<size_t>(ranks) + static_cast<size_t>(placing)) % std::size(kDTypes)];
  std::vector<std::string> labels;
  std::vector<Scene> scenes = all_scenes(ranks, placing, dtype, labels);
  std::vector<Scene> single;
  // Rules take turns, at another place for each number of ranks and placement.
  const size_t first = static_cast<size_t>(ranks) + static_cast<size_t>(placing);
  for (size_t i = 0; i < scenes.size(); ++i) {
    single.push_back(on_one_rank(scenes[i]));
    share_out(scenes[i], kSplitRules[(first + i) % std::size(kSplitRules)]);
  }
  const auto alone = run_scenes(single, "pull"), outs = run_shared(scenes, kind);
  for (size_t i = 0; i < scenes.size(); ++i) {
    const std::string label = cat(labels[i], ", rule ", static_cast<int>(scenes[i].rule));
    const int additions = scenes[i].top_k + (is_exact(kind) ? 0 : ranks);
    EXPECT_EQ(difference(scenes[i], expect(scenes[i]), outs[i], additions), "") << label;
    if (is_exact(kind)) {
      EXPECT_TRUE(same_bits(outs[i], alone[i])) << "other bits: " << label;
    }
  }
}

class EachKind : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, EachKind, testing::ValuesIn(kKinds),
                         [](const auto& chosen) { return std::string(chosen.param); });

// Random sizes, placements, routings. TRIMTAB_TEST_SEED repeats one that failed.
TEST_P(EachKind, RandomScenes) {
  const char* text = std::getenv("TRIMTAB_TEST_SEED");
  const uint32_t begin =
      text == nullptr ? 20240607U : static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
  const uint32_t rounds =
      heavy_tests() ? 100'000 / static_cast<uint32_t>(std::size(kKinds)) + 1 : 40;
  for (uint32_t seed = begin; seed < begin + rounds; ++seed) {
    SCOPED_TRACE(cat("TRIMTAB_TEST_SEED=", seed));
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    Scene scene;
    const int ranks = pick(1, 6);
    if (!can_have_ranks(ranks)) continue;
    for (int r = 0; r < ranks; ++r) scene.tokens.push_back(pick(0, 2) == 0 ? 0 : pick(0, 40));
    scene.num_experts = pick(ranks > 1 ? ranks - 1 : 1, kNumExperts);
    scene.dtype = kDTypes[pick(0, 3)];
    scene.hidden = scene.dtype == DType::kF8E4M3 ? 32 * pick(1, 3) : pick(1, 70);
    scene.top_k = pick(1, scene.num_experts);
    scene.weight_on_input = scene.top_k == 1 && scene.dtype != DType::kF8E4M3 && pick(0, 1) == 0;
    scene.slots = place(kPlacings[pick(0, 4)], ranks, scene.num_experts);
    fill(scene, kRoutes[pick(0, 3)], seed);
    const bool sharing =
        std::ranges::find(kSharingKinds, std::string_view(GetParam())) != std::end(kSharingKinds);
    if (const int rule = pick(0, 4); sharing && rule < 4) share_out(scene, kSplitRules[rule]);
    const auto outs = run_scenes({scene}, GetParam());
    EXPECT_EQ(difference(scene, expect(scene), outs[0], scene.top_k + ranks), "");
    if (is_exact(GetParam())) {
      EXPECT_TRUE(same_bits(outs[0], run_scenes({on_one_rank(scene)}, "pull")[0]));
    }
  }
}

}  // namespace
}  // namespace trimtab
