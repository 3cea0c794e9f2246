// SPDX-License-Identifier: Apache-2.0
// What a layer sends to its experts: quantised rows, rows that the router's weight has multiplied,
// rows in blocks.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/testing.h"
#include "layer/layer_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace layer_testing;

class SentRows : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, SentRows,
                         testing::Values("pull", "fused", "all_gather", "all_to_all", "mc2",
                                         "packed"),
                         [](const auto& param) { return param.param; });

// Of the rank's tokens.
std::vector<float> forward(const MoeLayer& layer, Communicator& comm) {
  Team team(2);
  OwnLane own(comm, layer, team);
  return layer_testing::forward(layer, input_of(comm.rank(), tokens_of(comm.rank())), own.lane);
}

// P5: rows quantised to int8 with one scale each before they are gathered. Experts of int8 weights
// round their rows to int8 anyway: whether they or the layer do it makes no difference.
TEST_P(SentRows, Int8RowsGiveTheBitsOfUnquantisedOnes) {
  TRIMTAB_NEEDS_RANKS(3);
  const World world({.dispatcher = GetParam(), .dtype = DType::kBF16});
  std::vector<std::shared_ptr<const Mlp>> in_int8;
  for (const MlpWeights& expert : world.experts) in_int8.push_back(expert.packed(Scheme::kW8A8));
  const Placement placement = Placement::linear(1, kExperts, 3);
  run_group(3, [&](Communicator& comm) {
    const auto layer_with = [&](DType rows) {
      return MoeLayer({.gate = world.gate,
                       .router = world.router,
                       .replicas = std::make_shared<const SplitTable>(placement, 0),
                       .dispatcher = world.dispatcher(placement, comm.rank(), kTopK, rows),
                       .experts = make_grouped_experts(slots_of(placement, comm.rank(), in_int8),
                                                       kHidden, Scheme::kW8A8, world.format()),
                       .shared = SharedExperts(world.shared_packed, world.shared_gate)});
    };
    EXPECT_EQ(forward(layer_with(DType::kI8), comm), forward(layer_with(DType::kBF16), comm));
  });
}

// Rows that travel in a type that the experts don't take are converted where they arrive. The
// router and the shared experts have the unrounded ones.
TEST_P(SentRows, OtherTypesAreConvertedWhereTheyArrive) {
  TRIMTAB_NEEDS_RANKS(3);
  if (GetParam() == "fused") return;  // refused, see below
  for (const DType experts : {DType::kF32, DType::kBF16}) {
    const World world({.dispatcher = GetParam(), .dtype = experts});
    const Placement placement = Placement::linear(1, kExperts, 3);
    for (const DType rows : {DType::kF32, DType::kBF16, DType::kI8}) {
      run_group(3, [&](Communicator& comm) {
        const MoeLayer layer({.gate = world.gate,
                              .router = world.router,
                              .replicas = std::make_shared<const SplitTable>(placement, 0),
                              .dispatcher = world.dispatcher(placement, comm.rank(), kTopK, rows),
                              .experts = make_grouped_experts(
                                  slots_of(placement, comm.rank(), world.packed), kHidden, experts),
                              .shared = SharedExperts(world.shared_packed, world.shared_gate)});
        const std::vector<float> out = forward(layer, comm),
                                 x = input_of(comm.rank(), tokens_of(comm.rank()));
        for (size_t t = 0; t * kHidden < x.size(); ++t) {
          expect_row(world.expected(x.data() + t * kHidden), out.data() + t * kHidden,
                     rows == experts ? experts : DType::kBF16, std::string(name(rows)));
        }
      });
    }
  }
}

TEST(SentRowsErrors, ExpertsThatReadThemInPlaceMustAcceptThem) {
  const World world({.dispatcher = "fused"});
  const Placement placement = Placement::linear(1, kExperts, 1);
  MoeLayer::Parts parts{
      .gate = world.gate,
      .router = world.router,
      .replicas = std::make_shared<const SplitTable>(placement, 0),
      .dispatcher = world.dispatcher(placement, 0, kTopK, DType::kI8),
      .experts = make_grouped_experts(world.packed, kHidden, Scheme::kF32, Format::kIndirect)};
  EXPECT_THROW(MoeLayer(std::move(parts)), InvalidArgument);
}

// One pick a token, whose renormalised weight is the scaling factor: the output is expert(1.5 x).
TEST_P(SentRows, TheWeightMayMultiplyTheInput) {
  TRIMTAB_NEEDS_RANKS(2);
  const World world({.dispatcher = GetParam(), .shared = false, .zero_experts = 0});
  const Placement placement = Placement::linear(1, kExperts, 2);
  RouterConfig config = world.router->config();
  config.top_k = 1;
  const auto router = std::make_shared<const Router>(config);
  run_group(2, [&](Communicator& comm) {
    const MoeLayer layer(
        {.gate = world.gate,
         .router = router,
         .replicas = std::make_shared<const SplitTable>(placement, 0),
         .dispatcher = world.dispatcher(placement, comm.rank(), 1),
         .experts = make_grouped_experts(slots_of(placement, comm.rank(), world.packed), kHidden,
                                         Scheme::kF32, world.format()),
         .weight_on_input = true});
    const std::vector<float> out = forward(layer, comm),
                             x = input_of(comm.rank(), tokens_of(comm.rank()));
    for (size_t t = 0; t * kHidden < x.size(); ++t) {
      std::vector<float> scaled(x.begin() + static_cast<int64_t>(t) * kHidden,
                                x.begin() + static_cast<int64_t>(t + 1) * kHidden);
      int best = 0;
      double best_logit = -1e30;
      for (int e = 0; e < kExperts; ++e) {
        const double logit = dot(world.gate_weight.data() + e * kHidden, scaled.data(), kHidden);
        if (logit > best_logit) best = e;
        best_logit = std::max(best_logit, logit);
      }
      for (float& value : scaled) value *= 1.5F;
      std::vector<double> want(kHidden, 0.0);
      world.experts[best].accumulate(scaled.data(), 1.0, want.data());
      expect_row(want, out.data() + t * kHidden, DType::kF32, "token " + std::to_string(t));
    }
  });
}

TEST(SentRowsErrors, WeightsOnTheInputNeedOnePick) {
  const World world({});
  const Placement placement = Placement::linear(1, kExperts, 1);
  MoeLayer::Parts parts{.gate = world.gate,
                        .router = world.router,
                        .replicas = std::make_shared<const SplitTable>(placement, 0),
                        .dispatcher = world.dispatcher(placement, 0),
                        .experts = make_grouped_experts(world.packed, kHidden, DType::kF32),
                        .weight_on_input = true};
  EXPECT_THROW(MoeLayer(std::move(parts)), InvalidArgument);
}

MoeLayer batched_layer(const World& world, const Placement& placement, int rank, Format dispatched,
                       Format computed) {
  DispatchShape shape{kMaxTokens, kHidden, kTopK, DType::kF32, placement.first_slots()};
  if (dispatched == Format::kBatched) shape.capacity = 2 * kMaxTokens;
  return MoeLayer({.gate = world.gate,
                   .router = world.router,
                   .replicas = std::make_shared<const SplitTable>(placement, 0),
                   .dispatcher = make_dispatcher(
                       dispatched == Format::kBatched ? "pull_batched" : "pull", shape, rank),
                   .experts = make_grouped_experts(slots_of(placement, rank, world.packed), kHidden,
                                                   Scheme::kF32, computed)});
}

// K1: any dispatcher with any experts of the same row format, checked at construction.
// K2: two row formats: sorted by expert, and a block of fixed capacity per expert; a third,
//     pointers to the rows of their sources.
TEST(BatchedRows, GiveTheBitsOfStandardOnes) {
  TRIMTAB_NEEDS_RANKS(3);
  const World world({});
  const Placement placement = Placement::linear(1, kExperts, 3);
  run_group(3, [&](Communicator& comm) {
    const auto with = [&](Format format) {
      return batched_layer(world, placement, comm.rank(), format, format);
    };
    EXPECT_EQ(forward(with(Format::kBatched), comm), forward(with(Format::kStandard), comm));
  });
}

TEST(BatchedRows, OtherFormatsAreRefused) {
  const World world({});
  const Placement placement = Placement::linear(1, kExperts, 1);
  EXPECT_THROW(batched_layer(world, placement, 0, Format::kBatched, Format::kStandard),
               InvalidArgument);
  EXPECT_THROW(batched_layer(world, placement, 0, Format::kStandard, Format::kBatched),
               InvalidArgument);
  EXPECT_THROW(batched_layer(world, placement, 0, Format::kStandard, Format::kIndirect),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab
