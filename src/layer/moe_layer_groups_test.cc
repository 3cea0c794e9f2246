// SPDX-License-Identifier: Apache-2.0
// Mixture of grouped experts: a router that picks as many experts in every group, and ranks that
// hold whole groups and have the same tokens. Whatever the tokens are, every rank gets as many
// rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/testing.h"
#include "layer/layer_testing.h"
#include "trimtab/error.h"
#include "trimtab/layout.h"

namespace trimtab {
namespace {

using layer_testing::dot;
using layer_testing::kHidden;
using layer_testing::matrix;
using layer_testing::MlpWeights;
using layer_testing::random_floats;

constexpr int kNumExperts = 16, kGroups = 4, kPicks = 8, kEach = kPicks / kGroups;
constexpr int64_t kMost = 11;

struct GroupedModel {
  explicit GroupedModel(int num_appended) : appended(num_appended) {
    for (uint64_t e = 0; e < kNumExperts + 1; ++e) experts.emplace_back(20, 300 + 10 * e);
  }

  RouterConfig router() const {
    RouterConfig config{
        .num_experts = kNumExperts, .num_appended_experts = appended, .top_k = kPicks};
    config.num_groups = config.top_groups = kGroups;
    config.picks_in_every_group = true;
    return config;
  }
  // Whole groups in order; an appended expert is the last rank's.
  Placement placement(int ranks) const {
    std::vector<int> slots(static_cast<size_t>(ranks), kNumExperts / ranks);
    slots.back() += appended;
    std::vector<int32_t> logical(static_cast<size_t>(kNumExperts + appended));
    std::iota(logical.begin(), logical.end(), 0);
    return {1, kNumExperts + appended, slots, logical};
  }
  MoeLayer layer(const RouterConfig& config, int ranks, int rank) const {
    const Placement all = placement(ranks);
    std::vector<std::shared_ptr<const Mlp>> packed;
    for (int s = all.first_slot(rank); s < all.first_slot(rank + 1); ++s)
      packed.push_back(experts[static_cast<size_t>(s)].packed(Scheme::kF32));
    return MoeLayer({.gate = std::make_shared<const Linear>(matrix(gate, kNumExperts, kHidden),
                                                            VectorSource{}, DType::kF32),
                     .router = std::make_shared<const Router>(config),
                     .replicas = std::make_shared<const SplitTable>(all, 0),
                     .dispatcher = make_summed_dispatcher(
                         {kMost, kHidden, kPicks + appended, DType::kF32, all.first_slots()}, rank),
                     .experts = make_grouped_experts(std::move(packed), kHidden, Scheme::kF32)});
  }
  // By the definition: a softmax, the best of each group, weights that add up to 1.
  std::vector<double> expected(const float* x) const {
    std::vector<double> scores(kNumExperts), y(kHidden, 0.0);
    for (int e = 0; e < kNumExperts; ++e)
      scores[e] = std::exp(dot(gate.data() + e * kHidden, x, kHidden));
    std::vector<int> picks;
    for (int g = 0; g < kGroups; ++g) {
      std::vector<int> group(kNumExperts / kGroups);
      std::iota(group.begin(), group.end(), g * kNumExperts / kGroups);
      std::ranges::sort(group, [&](int a, int b) { return scores[a] > scores[b]; });
      picks.insert(picks.end(), group.begin(), group.begin() + kEach);
    }
    double sum = 0;
    for (const int e : picks) sum += scores[e];
    for (const int e : picks) experts[e].accumulate(x, scores[e] / sum, y.data());
    if (appended > 0) experts[kNumExperts].accumulate(x, 1.0, y.data());
    return y;
  }

  int appended;
  // One group's experts have by far the largest logits: plain top-k would take most of them there.
  std::vector<float> gate = [] {
    std::vector<float> values = random_floats(kNumExperts * kHidden, 7, 0.1F);
    for (int i = 0; i < kNumExperts / kGroups * kHidden; ++i) values[i] *= 20.0F;
    return values;
  }();
  std::vector<MlpWeights> experts;  // the last one is appended
};

// D4: experts in groups, as many picks on each rank, the same tokens on every rank; the sum is over
//     ranks.
// B16: a mistake made elsewhere: fewer picks than ranks, rows sorted as floats.
TEST(GroupedExperts, EveryRankHasEqualWork) {
  for (const int appended : {0, 1}) {
    const GroupedModel model(appended);
    for (const int ranks : rank_counts({1, 2, 4})) {
      run_group(ranks, [&](Communicator& comm) {
        const MoeLayer layer = model.layer(model.router(), ranks, comm.rank());
        Workspace workspace(comm.allocate(layer.workspace_bytes(kMost)));
        Team team(1 + comm.rank() % 2);
        Lane lane{comm, workspace, team};
        for (const int64_t tokens : {int64_t{0}, int64_t{1}, int64_t{7}, kMost}) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(tokens) + " tokens");
          const auto x = random_floats(static_cast<size_t>(tokens * kHidden), 70, 1.0F);
          std::vector<int32_t> counts(
              static_cast<size_t>(model.placement(ranks).slots_of_rank(comm.rank())));
          const auto out = layer_testing::forward(layer, x, lane, {.local_counts = counts});
          const bool has_appended = appended > 0 && comm.rank() == ranks - 1;
          EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                    tokens * kPicks / ranks + (has_appended ? tokens : 0));
          for (int64_t t = 0; t < tokens; ++t) {
            layer_testing::expect_row(model.expected(x.data() + t * kHidden),
                                      out.data() + t * kHidden, DType::kF32,
                                      "token " + std::to_string(t));
          }
        }
      });
    }
  }
}

// R12: a profile run has equal work too.
TEST(GroupedExperts, ForcedBalanceKeepsWorkEqual) {
  const GroupedModel model(0);
  RouterConfig config = model.router();
  config.force_balance = true;
  for (const int ranks : rank_counts({2, 4})) {
    run_group(ranks, [&](Communicator& comm) {
      const MoeLayer layer = model.layer(config, ranks, comm.rank());
      Workspace workspace(comm.allocate(layer.workspace_bytes(kMost)));
      Team team(1);
      Lane lane{comm, workspace, team};
      std::vector<int32_t> counts(static_cast<size_t>(kNumExperts / ranks));
      layer_testing::forward(layer, random_floats(kMost * kHidden, 71, 1.0F), lane,
                             {.local_counts = counts});
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), kMost * kPicks / ranks);
    });
  }
}

// R13: picks of another run, whose ids are in every group, are replayed.
TEST(GroupedExperts, RoutesAreReplayed) {
  TRIMTAB_NEEDS_RANKS(2);
  const GroupedModel model(1);
  run_group(2, [&](Communicator& comm) {
    const MoeLayer layer = model.layer(model.router(), 2, comm.rank());
    Workspace workspace(comm.allocate(layer.workspace_bytes(kMost)));
    Team team(1);
    Lane lane{comm, workspace, team};
    const auto x = random_floats(kMost * kHidden, 72, 1.0F);
    std::vector<int32_t> captured;
    const Capture capture = [&](int, int64_t, int top_k, std::span<const int32_t> ids) {
      EXPECT_EQ(top_k, kPicks);
      captured.assign(ids.begin(), ids.end());
    };
    const auto out = layer_testing::forward(layer, x, lane, {.capture = &capture});
    EXPECT_EQ(layer_testing::forward(layer, x, lane, {.picks = captured}), out);
    std::ranges::fill(captured, 3);
    EXPECT_THROW(layer_testing::forward(layer, x, lane, {.picks = captured}), InvalidArgument);
  });
}

}  // namespace
}  // namespace trimtab
