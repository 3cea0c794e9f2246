// SPDX-License-Identifier: Apache-2.0
// Ranks that come to an exchange with different shapes, requests, replicas or placements: every
// rank gets an InvalidArgument that names the difference, none gets rows, and the group goes on.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/quantize_rows.h"
#include "comm/testing.h"
#include "dispatch/terms.h"
#include "dispatch/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr int kHidden = 64, kTopK = 2, kExperts = 12;
constexpr int64_t kMaxTokens = 6;

// What one rank brings.
struct RankSetup {
  DispatchShape shape;
  std::vector<int32_t> first_slots;
  int64_t tokens = 3;
  int top_k = kTopK;
  bool weight_on_input = false;
  Replicas replicas = {};
  uint64_t placement = 7;
};

struct Tables {
  SplitTable one, other;
  CostModel cost = CostModel({{1, 700}}), other_cost = CostModel({{1, 701}});
};
Tables tables(int ranks) {
  std::vector<int32_t> logical(2 * kExperts), swapped;
  for (int s = 0; s < 2 * kExperts; ++s) logical[s] = s % kExperts;
  swapped = logical;
  std::swap(swapped[0], swapped[1]);
  std::vector<int> slots;
  for (int r = 0; r < ranks; ++r)
    slots.push_back(2 * kExperts * (r + 1) / ranks - 2 * kExperts * r / ranks);
  return {SplitTable(Placement(1, kExperts, slots, logical), 0),
          SplitTable(Placement(1, kExperts, slots, swapped), 0)};
}

RankSetup setup(int ranks, std::string_view kind) {
  RankSetup s;
  for (int r = 0; r <= ranks; ++r) s.first_slots.push_back(2 * kExperts * r / ranks);
  s.shape = {.max_tokens = kMaxTokens, .hidden = kHidden, .top_k = 3};
  if (kind == "pull_batched") s.shape.capacity = 40;
  return s;
}

struct Field {
  const char* name;  // what the error says
  bool (*concerns)(const DispatcherKind& kind);
  void (*change)(RankSetup& setup, const Tables& tables);
  // How all ranks come, the one that differs too.
  void (*before)(RankSetup& setup, const Tables& tables) = [](RankSetup&, const Tables&) {};
};

constexpr auto kAll = [](const DispatcherKind&) { return true; };
constexpr auto kSharing = [](const DispatcherKind& kind) { return kind.shares_out; };
void share(RankSetup& s, const Tables& t) {
  s.shape.num_experts = kExperts;
  s.replicas = {&t.one, SplitRule::kSplit};
}

void share_by_time(RankSetup& s, const Tables& t) {
  s.shape.num_experts = kExperts;
  s.replicas = {&t.one, SplitRule::kTime, &t.cost};
}

constexpr Field kFields[] = {
    {"hidden", kAll, [](RankSetup& s, const Tables&) { s.shape.hidden = 32; }},
    {"rows of dtype", kAll, [](RankSetup& s, const Tables&) { s.shape.dtype = DType::kBF16; }},
    {"rows of dtype", kAll, [](RankSetup& s, const Tables&) { s.shape.dtype = DType::kI8; }},
    {"rows of dtype", kAll, [](RankSetup& s, const Tables&) { s.shape.dtype = DType::kF8E4M3; }},
    {"results of dtype", [](const DispatcherKind& kind) { return kind.sends_results; },
     [](RankSetup& s, const Tables&) { s.shape.results = DType::kI8; }},
    {"top_k", kAll, [](RankSetup& s, const Tables&) { s.top_k = 1; }},
    {"top_k", kAll, [](RankSetup& s, const Tables&) { s.shape.top_k = 8, s.top_k = 8; }},
    {"shape of top_k", kAll, [](RankSetup& s, const Tables&) { s.shape.top_k = 2; }},
    {"weight_on_input", kAll, [](RankSetup& s, const Tables&) { s.weight_on_input = true; },
     [](RankSetup& s, const Tables&) { s.top_k = 1; }},
    {"max_tokens", kAll, [](RankSetup& s, const Tables&) { s.shape.max_tokens = 5; }},
    // More than the others have room for.
    {"max_tokens", kAll,
     [](RankSetup& s, const Tables&) { s.shape.max_tokens = 500, s.tokens = 500; }},
    {"capacity", [](const DispatcherKind& kind) { return kind.format == Format::kBatched; },
     [](RankSetup& s, const Tables&) { s.shape.capacity = 41; }},
    {"row budget of", [](const DispatcherKind& kind) { return kind.takes_row_budget; },
     [](RankSetup& s, const Tables&) { s.shape.row_budget = 30; }},
    {"exact_order", [](const DispatcherKind& kind) { return kind.order == SumOrder::kById; },
     [](RankSetup& s, const Tables&) { s.shape.exact_order = true; }},
    {"num_experts", kSharing, [](RankSetup& s, const Tables&) { s.shape.num_experts = kExperts; }},
    {"first_slots", kAll, [](RankSetup& s, const Tables&) { ++s.first_slots[1]; }},
    {"split rule", kSharing, [](RankSetup& s, const Tables&) { s.replicas = {}; }, share},
    {"split rule", kSharing,
     [](RankSetup& s, const Tables&) { s.replicas.rule = SplitRule::kRoundRobin; }, share},
    {"replicas", kSharing, [](RankSetup& s, const Tables& t) { s.replicas.table = &t.other; },
     share},
    {"cost models", kSharing,
     [](RankSetup& s, const Tables& t) { s.replicas.cost = &t.other_cost; }, share_by_time},
    {"placements", kAll, [](RankSetup& s, const Tables&) { s.placement = 8; }},
    {"placements", kAll, [](RankSetup& s, const Tables&) { s.placement = 0, s.tokens = 0; }},
};

// A rank's request, with the memory that it points to.
struct OwnRequest {
  explicit OwnRequest(const RankSetup& s) {
    const int64_t picks = s.tokens * s.top_k;
    const DispatchShape& shape = s.shape;
    x.resize(shape_bytes(shape.dtype, s.tokens, shape.hidden));
    const ScaleShape scale = scale_shape(shape.dtype, shape.hidden);
    scales.resize(shape_bytes(scale.dtype, s.tokens, scale.cols));
    for (int64_t i = 0; i < picks; ++i)
      ids.push_back(static_cast<int32_t>(i % (s.replicas.table != nullptr ? kExperts : 20)));
    weights.assign(picks, 0.5F);
    request = {ConstRows(x.data(), s.tokens, shape.hidden, shape.hidden, shape.dtype),
               ids,
               weights,
               s.top_k,
               s.weight_on_input,
               scale.cols == 0
                   ? ConstRows{}
                   : ConstRows(scales.data(), s.tokens, scale.cols, scale.cols, scale.dtype),
               s.replicas,
               s.placement};
  }
  std::vector<std::byte> x, scales;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  Request request;
};

// One dispatch, up to the arrival of rows. Returns the text of its InvalidArgument.
std::string error_of(const RankSetup& s, std::string_view kind, Communicator& comm, bool polls) {
  DispatchShape shape = s.shape;
  shape.first_slots = s.first_slots;
  const TestedDispatcher dispatcher(kind, shape, comm);
  Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
  Team team(1);
  Lane lane{comm, workspace, team, dispatcher.groups()};
  const OwnRequest own(s);
  const ExchangePtr exchange = dispatcher->dispatch(own.request, lane);
  try {
    while (polls && !exchange->poll(Stage::kArrived)) std::this_thread::yield();
    exchange->wait(Stage::kArrived);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

using Parameters = std::tuple<const char*, int>;
class DispatchTerms : public testing::TestWithParam<Parameters> {};
INSTANTIATE_TEST_SUITE_P(All, DispatchTerms,
                         testing::Combine(testing::ValuesIn(kKinds),
                                          testing::ValuesIn(rank_counts({2, 4}))),
                         [](const auto& chosen) {
                           return cat(std::get<0>(chosen.param), "_", std::get<1>(chosen.param),
                                      "_ranks");
                         });

TEST_P(DispatchTerms, ADifferenceIsAnErrorOnEveryRankAndTheGroupGoesOn) {
  const auto [kind, ranks] = GetParam();
  const std::string_view name = std::string_view(kind).substr(0, 10) == "all_gather" ? "all_gather"
                                : std::string_view(kind).starts_with("packed")       ? "packed"
                                                                                     : kind;
  const Tables two = tables(ranks);
  Scene scene{.tokens = std::vector<int64_t>(ranks, 5), .num_experts = kExperts, .top_k = kTopK};
  scene.slots = place(Placing::kRedundant, ranks, kExperts);
  fill(scene, Routes::kUniform, 5);
  std::vector<float> out(scene.x.size());
  run_scene_ranks(kind, ranks, [&](Communicator& comm) {
    for (const Field& field : kFields) {
      if (!field.concerns(dispatcher_kind(name))) continue;
      for (const int odd : {0, ranks - 1}) {
        RankSetup mine = setup(ranks, kind);
        field.before(mine, two);
        if (comm.rank() == odd) field.change(mine, two);
        const std::string error = error_of(mine, kind, comm, comm.rank() % 2 == 1);
        EXPECT_NE(error.find(field.name), std::string::npos)
            << kind << ", rank " << comm.rank() << ", " << field.name << ": " << error;
      }
    }
    // The ranks agree again, in the same group.
    const TestedDispatcher dispatcher(kind, shape_of(scene, kMaxTokens, kTopK), comm);
    Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
    Team team(1);
    Lane lane{comm, workspace, team, dispatcher.groups()};
    exchange_once(scene, *dispatcher, lane, Left::kWeightAndSum, out);
  });
  bring_together(scene, out);
  EXPECT_EQ(difference(scene, expect(scene), out, kTopK + ranks), "");
}

// Dispatchers whose first messages are alike.
TEST(DispatchTermsOfKinds, AnotherDispatcherIsAnErrorOnEveryRank) {
  TRIMTAB_NEEDS_RANKS(2);
  using Pair = std::pair<const char*, const char*>;
  for (const auto& [first, second] :
       {Pair{"all_to_all", "mc2"}, Pair{"mc2", "packed"}, Pair{"all_gather", "all_to_all"},
        Pair{"pull", "fused"}, Pair{"pull_batched", "pull"}}) {
    std::vector<std::vector<float>> named(2);
    run_group(2, [&, first = first, second = second](Communicator& comm) {
      const char* kind = comm.rank() == 0 ? first : second;
      const std::string error = error_of(setup(2, kind), kind, comm, false);
      named[comm.rank()] = {error.find("different dispatchers") != std::string::npos ? 1.0F : 0.0F};
    });
    bring_together(named);
    EXPECT_EQ(named[0], std::vector{1.0F}) << first << ", " << second;
    EXPECT_EQ(named[1], std::vector{1.0F}) << first << ", " << second;
  }
}

// A message that was damaged on its way may hold any value, and is named all the same.
TEST(DispatchTermsOfKinds, ValuesThatCanNotBeAreNamed) {
  const auto said = []<class T>(T Terms::* member, int value) {
    Terms mine, theirs;
    theirs.*member = static_cast<T>(value);
    try {
      throw_difference("mc2", 0, mine, 1, theirs);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
  };
  for (const int value : {std::numeric_limits<int>::min(), -1})
    EXPECT_NE(said(&Terms::rule, value).find("an unknown one"), std::string::npos) << value;
  for (const int value : {std::numeric_limits<int16_t>::min() + 0, -1}) {
    EXPECT_NE(said(&Terms::dtype, value).find("an unknown type"), std::string::npos) << value;
    EXPECT_NE(said(&Terms::results, value).find("an unknown type"), std::string::npos) << value;
  }
  EXPECT_NE(said(&Terms::dtype, 41).find("an unknown type"), std::string::npos);
}

}  // namespace
}  // namespace trimtab
