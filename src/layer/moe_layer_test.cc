// SPDX-License-Identifier: Apache-2.0
// The whole layer over ranks as threads, against a double-precision reference of the layer's
// definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/test_effort.h"
#include "comm/testing.h"
#include "layer/layer_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace layer_testing;

// Runs one forward on every rank; returns each rank's output.
std::vector<std::vector<float>> forward_all(const World& world, const Placement& placement) {
  const int ranks = placement.num_ranks();
  std::vector<std::vector<float>> outputs(ranks);
  run_group(ranks, [&](Communicator& comm) {
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(world.options.threads);
    OwnLane own(comm, layer, team);
    const std::vector<float> x = input_of(comm.rank(), tokens_of(comm.rank()));
    std::vector<float> out;
    for (int repeat = 0; repeat < 3; ++repeat) out = forward(layer, x, own.lane);
    expect_rows(world, x, out, "rank");
    outputs[comm.rank()] = out;
  });
  bring_together(outputs);
  return outputs;
}

class MoeLayerTest : public testing::TestWithParam<std::tuple<Way, int>> {
 protected:
  void SetUp() override { TRIMTAB_SAMPLED_UNDER_SANITIZERS(3); }
  std::string dispatcher() const { return std::get<0>(GetParam()).dispatcher; }
  SplitRule split() const { return std::get<0>(GetParam()).split; }
  int ranks() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(DispatchersAndRanks, MoeLayerTest,
                         testing::Combine(testing::ValuesIn(kWays),
                                          testing::ValuesIn(rank_counts({1, 2, 3, 4, 7}))),
                         [](const auto& param) {
                           return std::get<0>(param.param).name() + "_" +
                                  std::to_string(std::get<1>(param.param));
                         });

// K8: the output is a buffer apart from the input and written whole; a rank without rows skips its
//     experts but not the combine.
// K12: shared experts run while results travel back.
// S1: shared experts in two halves (gate and up; down and the sigmoid gate) equal the whole.
// S2: first half under the dispatch, second under the combine.
// S4: routed and shared outputs are summed.
// S5: order of issue: publish the dispatch, first half, then wait.
// B7: a mistake made elsewhere: zero experts' result added on every rank, or to the wrong object.
TEST_P(MoeLayerTest, EqualsTheDefinition) {
  const Placement placement = Placement::linear(1, kExperts, ranks());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool shared : {false, true}) {
      for (const int zero : {0, kZeroExperts}) {
        forward_all(World({.dispatcher = dispatcher(),
                           .dtype = dtype,
                           .shared = shared,
                           .zero_experts = zero,
                           .split = split()}),
                    placement);
      }
    }
  }
}

// R15: logical ids become physical ones per rank, after the capture and before every dispatcher; -1
//     passes through.
// B4: a mistake made elsewhere: some paths forget the logical-to-physical map.
TEST_P(MoeLayerTest, ReplicasAndPermutedPlacementsGiveTheSame) {
  // Two slots a rank and a few more, so that with any number of ranks some experts have replicas.
  const int ranks = this->ranks();
  std::vector<int> slots(ranks, 2 + (kExperts + ranks - 1) / ranks);
  std::vector<int32_t> logical;
  for (int s = 0; s < ranks * slots[0]; ++s) logical.push_back((5 * s + 3) % kExperts);
  const World world({.dispatcher = dispatcher(), .split = split()});
  const auto permuted = forward_all(world, Placement(1, kExperts, slots, logical));
  const auto linear = forward_all(world, Placement::linear(1, kExperts, ranks));
  if (dispatcher() != "all_gather" && dispatcher() != "packed") {
    EXPECT_EQ(permuted, linear);
  }
}

// With the same placement in all layers nothing else tells them apart.
TEST_P(MoeLayerTest, RanksInDifferentLayersAreToldSo) {
  if (ranks() == 1) return;
  run_group(ranks(), [&](Communicator& comm) {
    const World world({.dispatcher = dispatcher(),
                       .shared = false,
                       .split = split(),
                       .layer = comm.rank() == 0 ? 8 : 7});
    const MoeLayer layer = world.layer(Placement::linear(1, kExperts, ranks()), comm.rank());
    Team team(1);
    OwnLane own(comm, layer, team);
    try {
      forward(layer, input_of(comm.rank(), tokens_of(comm.rank())), own.lane);
      ADD_FAILURE() << "no rank has noticed it";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("in different layers"), std::string::npos)
          << error.what();
    }
  });
}

// The static rule takes a rank's own replica where it has one: no row leaves its rank.
TEST_P(MoeLayerTest, ARankWithAllExpertsKeepsItsRows) {
  if (split() != SplitRule::kStatic) return;
  const World world({.dispatcher = dispatcher(), .shared = false, .zero_experts = 0});
  std::vector<int32_t> logical;
  for (int s = 0; s < ranks() * kExperts; ++s) logical.push_back(s % kExperts);
  const Placement placement(1, kExperts, std::vector<int>(ranks(), kExperts), logical);
  run_group(ranks(), [&](Communicator& comm) {
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(1);
    OwnLane own(comm, layer, team);
    std::vector<int32_t> counts(kExperts);
    const int64_t tokens = tokens_of(comm.rank());
    forward(layer, input_of(comm.rank(), tokens), own.lane, {.local_counts = counts});
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), tokens * kTopK);
  });
}

// B27: a mistake made elsewhere: unset padding rows; capture sized for one way of padding; the
//     second microbatch overwrites the first one's capture.
TEST_P(MoeLayerTest, CountsAndCaptureTellWhatWasRouted) {
  const World world({.dispatcher = dispatcher(), .zero_experts = 0, .split = split()});
  const Placement placement = Placement::linear(1, kExperts, ranks());
  const std::vector<std::vector<float>> none(ranks(), std::vector<float>(kExperts));
  auto from_counts = none, from_capture = none;  // [ranks][experts]
  run_group(ranks(), [&](Communicator& comm) {
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(1);
    OwnLane own(comm, layer, team);
    const int64_t tokens = tokens_of(comm.rank());
    const Capture capture = [&](int id, int64_t first_token, int top_k,
                                std::span<const int32_t> ids) {
      EXPECT_EQ(id, 7);
      EXPECT_EQ(first_token, 11);
      EXPECT_EQ(top_k, kTopK);
      EXPECT_EQ(ids.size(), static_cast<size_t>(tokens * kTopK));
      for (const int32_t e : ids) ++from_capture[comm.rank()][e];
    };
    // Counts are added to what is there: 1000 each.
    std::vector<int32_t> counts(placement.slots_of_rank(comm.rank()), 1000);
    forward(layer, input_of(comm.rank(), tokens), own.lane,
            {.capture = &capture, .first_token = 11, .local_counts = counts});
    for (size_t s = 0; s < counts.size(); ++s) {
      const auto slot = static_cast<size_t>(placement.first_slot(comm.rank())) + s;
      from_counts[comm.rank()][placement.logical(0)[slot]] += static_cast<float>(counts[s] - 1000);
    }
  });
  bring_together(from_counts);
  bring_together(from_capture);
  const auto sum = [](const std::vector<std::vector<float>>& counts) {
    std::vector<float> total(kExperts);
    for (const auto& of_rank : counts) {
      for (size_t e = 0; e < total.size(); ++e) total[e] += of_rank[e];
    }
    return total;
  };
  EXPECT_EQ(sum(from_counts), sum(from_capture));
}

// S6: two microbatches, own buffers and channels each, hide each other's waits; either may be empty
//     on any rank.
// Two microbatches, in every mix of empty and full halves, equal the same tokens one after the
// other.
TEST_P(MoeLayerTest, OverlapEqualsOneByOne) {
  const World world({.dispatcher = dispatcher(), .split = split()});
  const Placement placement = Placement::linear(1, kExperts, ranks());
  run_group(ranks(), [&](Communicator& comm) {
    const std::unique_ptr<Communicator> other = comm.duplicate();
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(1);
    OwnLane first(comm, layer, team), second(*other, layer, team);
    for (int64_t round = 0; round < 6; ++round) {
      const int64_t a = (comm.rank() + round) % 3 * 4;
      const int64_t b = (comm.rank() + round) % 2 * 5;
      const std::vector<float> x = input_of(comm.rank(), a + b, 90);
      std::vector<float> out(x.size());
      const ConstRows rows(x.data(), a + b, kHidden);
      const Rows to(out.data(), a + b, kHidden);
      overlap(layer.forward(rows.slice(0, a), to.slice(0, a), first.lane),
              layer.forward(rows.slice(a, b), to.slice(a, b), second.lane));
      EXPECT_EQ(out, forward(layer, x, first.lane));
      expect_rows(world, x, out, "overlap");
    }
  });
}

// The same through several layers, with something of the model's own between them.
TEST_P(MoeLayerTest, OverlapThroughLayersEqualsOneByOne) {
  constexpr int64_t kLayers = 3;
  const World world({.dispatcher = dispatcher()});
  const Placement placement = Placement::linear(1, kExperts, ranks());
  run_group(ranks(), [&](Communicator& comm) {
    const std::unique_ptr<Communicator> other = comm.duplicate();
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(1);
    OwnLane first(comm, layer, team), second(*other, layer, team);
    const auto halve = [](std::vector<float>& values) {
      for (float& value : values) value *= 0.5F;
    };
    std::vector<float> x[2] = {input_of(comm.rank(), 3 + comm.rank()),
                               input_of(comm.rank(), comm.rank() % 2 * 4, 90)};
    std::vector<float> expected[2] = {x[0], x[1]}, out[2] = {x[0], x[1]};
    std::vector<int64_t> made[2];
    for (auto& h : expected) {
      for (int64_t l = 0; l < kLayers; ++l) {
        halve(h);
        h = forward(layer, h, first.lane);
      }
    }
    overlap(kLayers, [&](int64_t l, int b) {
      made[b].push_back(l);
      x[b] = out[b];
      halve(x[b]);
      const int64_t tokens = std::ssize(x[b]) / kHidden;
      return layer.forward(ConstRows(x[b].data(), tokens, kHidden),
                           Rows(out[b].data(), tokens, kHidden), b == 0 ? first.lane : second.lane);
    });
    for (const int b : {0, 1}) {
      EXPECT_EQ(out[b], expected[b]);
      EXPECT_EQ(made[b], (std::vector<int64_t>{0, 1, 2}));
    }
    EXPECT_EQ(first.workspace.mark(), 0U);
    EXPECT_EQ(second.workspace.mark(), 0U);
  });
}

// One rank's first or second microbatch fails in its router while the other is in flight: no rank
// finishes, none hangs, and both lanes get their memory back.
TEST_P(MoeLayerTest, OverlapWithAFailingCallFailsAllAndNobodyHangs) {
  const World world({.dispatcher = dispatcher(), .split = split()});
  const Placement placement = Placement::linear(1, kExperts, ranks());
  for (const size_t failing : {0U, 1U}) {
    const auto body = [&](Communicator& comm) {
      const std::unique_ptr<Communicator> other = comm.duplicate();
      const MoeLayer layer = world.layer(placement, comm.rank());
      Team team(1);
      OwnLane first(comm, layer, team), second(*other, layer, team);
      std::vector<float> x[2] = {input_of(comm.rank(), 4), input_of(comm.rank(), 4, 90)};
      if (comm.rank() == ranks() - 1) x[failing][5] = std::nanf("");
      std::vector<float> out[2] = {x[0], x[1]};
      try {
        overlap(layer.forward(ConstRows(x[0].data(), 4, kHidden), Rows(out[0].data(), 4, kHidden),
                              first.lane),
                layer.forward(ConstRows(x[1].data(), 4, kHidden), Rows(out[1].data(), 4, kHidden),
                              second.lane));
      } catch (const Error&) {
        EXPECT_EQ(first.workspace.mark(), 0U);
        EXPECT_EQ(second.workspace.mark(), 0U);
        throw;
      }
      ADD_FAILURE() << "rank " << comm.rank() << " finished";
    };
    // No timeout that would turn a hang into an error.
    EXPECT_THROW(run_group(ranks(), body, {.timeout = std::chrono::hours(1)}), InvalidArgument)
        << failing;
  }
}

// A shared expert that is placed and dispatched like the routed ones
// (RouterConfig::num_appended_experts) gives what one beside the layer gives, but for the order of
// the additions.
TEST_P(MoeLayerTest, AnAppendedExpertEqualsASharedOne) {
  const World world(
      {.dispatcher = dispatcher(), .shared = false, .zero_experts = 0, .split = split()});
  const MlpWeights extra(kInner, 500);
  std::vector<std::shared_ptr<const Mlp>> experts = world.packed;
  experts.push_back(extra.packed(DType::kF32));
  RouterConfig router = world.router->config();
  router.num_appended_experts = 1;
  const Placement placement = Placement::linear(1, kExperts + 1, ranks());
  run_group(ranks(), [&](Communicator& comm) {
    const int rank = comm.rank();
    const MoeLayer layer({.gate = world.gate,
                          .router = std::make_shared<const Router>(router),
                          .replicas = std::make_shared<const SplitTable>(placement, 0),
                          .split = split(),
                          .cost = world.options.cost,
                          .dispatcher = world.dispatcher(placement, rank, kTopK + 1),
                          .experts = make_grouped_experts(slots_of(placement, rank, experts),
                                                          kHidden, DType::kF32, world.format())});
    Team team(1);
    OwnLane own(comm, layer, team);
    const std::vector<float> x = input_of(rank, tokens_of(rank));
    const std::vector<float> out = forward(layer, x, own.lane);
    expect_rows(world, x, out, "appended",
                [&](const float* row, double* y) { extra.accumulate(row, 1.0, y); });
  });
}

TEST(MoeLayer, OutputBitsDoNotDependOnRanksOrThreads) {
  // All ranks' tokens as one rank's batches: the same rows must come out with the same bits.
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<std::vector<float>> reference;
    for (const int ranks : rank_counts({7, 4, 3, 2, 1})) {
      for (const int threads : {1, 3}) {
        const World world({.dtype = dtype, .threads = threads});
        const auto outputs = forward_all(world, Placement::linear(1, kExperts, ranks));
        if (reference.empty()) reference = outputs;
        for (size_t r = 0; r < outputs.size(); ++r)
          EXPECT_EQ(outputs[r], reference[r]) << ranks << " ranks";
      }
    }
  }
}

// Zero experts of a caller's router: their weights come with the ids.
TEST(MoeLayer, ZeroExpertsOfTheCaller) {
  const World world({.dtype = DType::kBF16});
  const Placement placement = Placement::linear(1, kExperts, 1);
  run_group(1, [&](Communicator& comm) {
    const MoeLayer layer = world.layer(placement, 0);
    Team team(1);
    OwnLane own(comm, layer, team);
    constexpr int64_t kTokens = 9;
    constexpr int kColumns = kExperts + kZeroExperts;
    const std::vector<float> x = input_of(0, kTokens);
    std::vector<float> logits(kTokens * kColumns), out(x.size());
    std::vector<int32_t> ids(kTokens * kTopK);
    std::vector<float> weights(ids.size()), identity(kTokens);
    const ConstRows rows(x.data(), kTokens, kHidden);
    world.gate->run(rows, Rows(logits.data(), kTokens, kColumns), team);
    world.router->route(ConstRows(logits.data(), kTokens, kColumns), {}, {ids, weights, identity});
    EXPECT_GT(*std::ranges::max_element(identity), 0.0F);
    run(layer.forward({rows, ids, weights, identity}, Rows(out.data(), kTokens, kHidden),
                      own.lane));
    EXPECT_EQ(out, forward(layer, x, own.lane));
  });
}

TEST(MoeLayer, AFailingRankFailsAllAndNobodyHangs) {
  const World world({});
  const Placement placement = Placement::linear(1, kExperts, 3);
  std::atomic<int> comm_errors = 0;
  const auto body = [&](Communicator& comm) {
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(1);
    OwnLane own(comm, layer, team);
    std::vector<float> x = input_of(comm.rank(), 4);
    if (comm.rank() == 2) x[5] = std::nanf("");
    try {
      forward(layer, x, own.lane);
    } catch (const CommError&) {
      ++comm_errors;
      throw;
    }
  };
  EXPECT_THROW(run_ranks(3, body), InvalidArgument);  // the cause, not its echo on the other ranks
  EXPECT_EQ(comm_errors, 2);
}

// K11: the number of experts is always said, never guessed from local weights.
TEST(MoeLayer, RefusesPartsThatDoNotFit) {
  const World world({});
  const Placement placement = Placement::linear(1, kExperts, 1);
  const auto parts = [&] {
    return MoeLayer::Parts{.gate = world.gate,
                           .router = world.router,
                           .replicas = std::make_shared<const SplitTable>(placement, 0),
                           .dispatcher = world.dispatcher(placement, 0),
                           .experts = make_grouped_experts(world.packed, kHidden, DType::kF32),
                           .shared = std::nullopt,
                           .layer = 0};
  };
  EXPECT_NO_THROW(MoeLayer{parts()});
  auto no_router = parts();
  no_router.router = nullptr;
  EXPECT_THROW(MoeLayer{std::move(no_router)}, InvalidArgument);
  auto narrow_gate = parts();
  narrow_gate.gate = world.shared_gate;
  EXPECT_THROW(MoeLayer{std::move(narrow_gate)}, InvalidArgument);
  for (const Placement& other :
       {Placement::linear(1, kExperts - 1, 1), Placement::linear(1, kExperts, 2),
        Placement(1, kExperts, {kExperts + 1}, {0, 1, 2, 3, 4, 5, 0})}) {
    auto other_replicas = parts();
    other_replicas.replicas = std::make_shared<const SplitTable>(other, 0);
    EXPECT_THROW(MoeLayer{std::move(other_replicas)}, InvalidArgument);
  }
  auto no_replicas = parts();
  no_replicas.replicas = nullptr;
  EXPECT_THROW(MoeLayer{std::move(no_replicas)}, InvalidArgument);
  auto shared_out = parts();  // by a dispatcher that is not made for it
  shared_out.split = SplitRule::kSplit;
  EXPECT_THROW(MoeLayer{std::move(shared_out)}, InvalidArgument);
  auto few_experts = parts();
  few_experts.experts = make_grouped_experts({world.packed[0]}, kHidden, DType::kF32);
  EXPECT_THROW(MoeLayer{std::move(few_experts)}, InvalidArgument);
}

TEST(MoeLayer, RefusesWrongInputs) {
  const World world({});
  const Placement placement = Placement::linear(1, kExperts, 1);
  run_group(1, [&](Communicator& comm) {
    const MoeLayer layer = world.layer(placement, 0);
    Team team(1);
    OwnLane own(comm, layer, team);
    Lane& lane = own.lane;
    std::vector<float> x(static_cast<size_t>(kHidden * (kMaxTokens + 1))), out(x.size());
    EXPECT_THROW(
        run(layer.forward(ConstRows(x.data(), 2, kHidden), Rows(out.data(), 1, kHidden), lane)),
        InvalidArgument);
    EXPECT_THROW(run(layer.forward(ConstRows(x.data(), 2, kHidden - 1),
                                   Rows(out.data(), 2, kHidden - 1), lane)),
                 InvalidArgument);
    EXPECT_THROW(run(layer.forward(ConstRows(x.data(), kMaxTokens + 1, kHidden),
                                   Rows(out.data(), kMaxTokens + 1, kHidden), lane)),
                 InvalidArgument);
    const Rows overlapping(reinterpret_cast<std::byte*>(out.data()), 2, kHidden, kHidden - 1,
                           DType::kF32);
    EXPECT_THROW(run(layer.forward(ConstRows(x.data(), 2, kHidden), overlapping, lane)),
                 InvalidArgument);
    EXPECT_THROW(
        run(layer.forward(ConstRows(x.data(), 2, kHidden), Rows(x.data(), 2, kHidden), lane)),
        InvalidArgument);
    std::vector<int32_t> counts(kExperts + 1);
    EXPECT_THROW(run(layer.forward(ConstRows(x.data(), 2, kHidden), Rows(out.data(), 2, kHidden),
                                   lane, {.local_counts = counts})),
                 InvalidArgument);
    // Room for the exchange, not for what the experts may have to do.
    Workspace small(comm.allocate(layer.workspace_bytes(kMaxTokens) - 16384));
    Lane narrow{comm, small, team};
    EXPECT_THROW(run(layer.forward(ConstRows(x.data(), kMaxTokens, kHidden),
                                   Rows(out.data(), kMaxTokens, kHidden), narrow)),
                 InvalidArgument);
    // Nothing has reached the group: it goes on.
    EXPECT_EQ(own.workspace.mark(), 0U);
    run(layer.forward(ConstRows(x.data(), kMaxTokens, kHidden),
                      Rows(out.data(), kMaxTokens, kHidden), lane));
  });
}

}  // namespace
}  // namespace trimtab
