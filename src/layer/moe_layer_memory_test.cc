// SPDX-License-Identifier: Apache-2.0
// A layer with a row budget: the memory that it reserves, and the same bits in more rounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "comm/testing.h"
#include "layer/layer_testing.h"

namespace trimtab::layer_testing {
namespace {

struct Made {
  std::vector<std::vector<float>> outs;    // [ranks] [tokens, kHidden]
  std::vector<std::vector<float>> counts;  // [ranks] [slots] rows
};

// Rank r has the tokens of xs[r].
Made forward_on_ranks(const World& world, const std::vector<std::vector<float>>& xs) {
  const int ranks = static_cast<int>(xs.size());
  Made made{std::vector<std::vector<float>>(xs.size()), std::vector<std::vector<float>>(xs.size())};
  run_group(ranks, [&](Communicator& comm) {
    const Placement placement = Placement::linear(1, kExperts, ranks);
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(2);
    OwnLane own(comm, layer, team);
    std::vector<int32_t> counts(placement.slots_of_rank(comm.rank()));
    made.outs[comm.rank()] = forward(layer, xs[comm.rank()], own.lane, {.local_counts = counts});
    made.counts[comm.rank()].assign(counts.begin(), counts.end());
  });
  bring_together(made.outs);
  bring_together(made.counts);
  return made;
}

class LayerRounds : public testing::TestWithParam<std::tuple<Way, int>> {};
INSTANTIATE_TEST_SUITE_P(All, LayerRounds,
                         testing::Combine(testing::ValuesIn(kWays),
                                          testing::ValuesIn(rank_counts({1, 2, 3, 4}))),
                         [](const auto& chosen) {
                           return std::get<0>(chosen.param).name() + "_" +
                                  std::to_string(std::get<1>(chosen.param)) + "_ranks";
                         });

// M12: bounded workspaces; a batch that brings more rows comes in rounds.
TEST_P(LayerRounds, GiveTheBitsAndTheCountsOfOne) {
  const auto& [way, ranks] = GetParam();
  Options options{.dispatcher = way.dispatcher, .split = way.split};
  // The picks of equal tokens all go to the same experts.
  std::vector<std::vector<float>> equal(ranks), mixed(ranks);
  for (int r = 0; r < ranks; ++r) {
    const std::vector<float> one = input_of(0, 1);
    for (int64_t t = 0; t < kMaxTokens; ++t)
      equal[r].insert(equal[r].end(), one.begin(), one.end());
    mixed[r] = input_of(r, r == 1 ? 0 : kMaxTokens - r);
  }
  for (const auto& xs : {equal, mixed}) {
    options.row_budget = 0;
    const World world(options);
    const Made whole = forward_on_ranks(world, xs);
    options.row_budget = int64_t{ranks} * kTopK;
    const Made rounds = forward_on_ranks(World(options), xs);
    for (int r = 0; r < ranks; ++r) {
      expect_rows(world, xs[r], rounds.outs[r], "in rounds");
      ASSERT_EQ(rounds.outs[r].size(), whole.outs[r].size());
      EXPECT_TRUE(xs[r].empty() || std::memcmp(rounds.outs[r].data(), whole.outs[r].data(),
                                               xs[r].size() * sizeof(float)) == 0)
          << "other bits on rank " << r;
    }
    EXPECT_EQ(rounds.counts, whole.counts);
  }
}

// Two microbatches, each in rounds.
TEST(LayerRounds, OverlapWithEachOther) {
  TRIMTAB_NEEDS_RANKS(2);
  const World world({.row_budget = 2 * kTopK});
  run_group(2, [&](Communicator& comm) {
    const MoeLayer layer = world.layer(Placement::linear(1, kExperts, 2), comm.rank());
    Team team(1);
    const auto other = comm.duplicate();
    OwnLane a(comm, layer, team), b(*other, layer, team);
    const std::vector<float> x = input_of(comm.rank(), 9), y = input_of(comm.rank(), 20, 70);
    std::vector<float> out_x(x.size()), out_y(y.size());
    overlap(
        layer.forward(ConstRows(x.data(), 9, kHidden), Rows(out_x.data(), 9, kHidden), a.lane),
        layer.forward(ConstRows(y.data(), 20, kHidden), Rows(out_y.data(), 20, kHidden), b.lane));
    expect_rows(world, x, out_x, "first");
    expect_rows(world, y, out_y, "second");
  });
}

struct ModelShape {
  int hidden, intermediate, experts, top_k, ranks;
  int64_t tokens;
};

// The workspace of a lane. All slots hold the same weights: only their shape counts.
size_t lane_bytes(const ModelShape& m, std::string_view dispatcher, double over_level) {
  const std::vector<std::byte> zeros(shape_bytes(DType::kBF16, m.experts, m.hidden) +
                                     shape_bytes(DType::kBF16, m.intermediate, m.hidden));
  const auto source = [&](int64_t rows, int64_t cols) {
    return MatrixSource{zeros.data(), DType::kBF16, rows, cols, cols, 1};
  };
  const auto mlp = std::make_shared<const Mlp>(MlpSource{.gate = source(m.intermediate, m.hidden),
                                                         .up = source(m.intermediate, m.hidden),
                                                         .down = source(m.hidden, m.intermediate),
                                                         .gate_bias = {},
                                                         .up_bias = {},
                                                         .down_bias = {}},
                                               Activation{}, DType::kBF16);
  const Placement placement = Placement::linear(1, m.experts, m.ranks);
  DispatchShape shape{m.tokens, m.hidden, m.top_k, DType::kBF16, placement.first_slots()};
  shape.row_budget = row_budget_of(shape, over_level);
  std::vector<int32_t> hosts(m.ranks);  // two
  for (int r = 0; r < m.ranks; ++r) hosts[r] = 2 * r / m.ranks;
  std::shared_ptr<const Dispatcher> made = make_dispatcher(dispatcher, shape, 0, hosts);
  const MoeLayer layer({.gate = std::make_shared<const Linear>(source(m.experts, m.hidden),
                                                               VectorSource{}, DType::kBF16),
                        .router = std::make_shared<const Router>(
                            RouterConfig{.num_experts = m.experts, .top_k = m.top_k}),
                        .replicas = std::make_shared<const SplitTable>(placement, 0),
                        .dispatcher = made,
                        .experts = make_grouped_experts(std::vector<std::shared_ptr<const Mlp>>(
                                                            placement.slots_of_rank(0), mlp),
                                                        m.hidden, DType::kBF16, made->format()),
                        .shared = SharedExperts(mlp)});
  return layer.workspace_bytes(m.tokens);
}

constexpr double kGB = 1e9;

// DeepSeek-V3, 8 ranks of 4,096 tokens, and Qwen3-30B-A3B, 64 ranks of 256 tokens.
TEST(LayerMemory, IsThatOfTheRowBudget) {
  const ModelShape deepseek{7168, 2048, 256, 8, 8, 4096}, qwen{2048, 768, 128, 8, 64, 256};
  for (const ModelShape& model : {deepseek, qwen}) {
    const double most = (model.ranks == 8 ? 3 : 0.5) * kGB;
    EXPECT_GT(static_cast<double>(lane_bytes(model, "pull", 0)), 2 * most);
    for (const DispatcherKind& kind : dispatcher_kinds()) {
      if (!kind.takes_row_budget) continue;
      EXPECT_LE(static_cast<double>(lane_bytes(model, kind.name, kRowBudget)), most) << kind.name;
    }
  }
}

}  // namespace
}  // namespace trimtab::layer_testing
