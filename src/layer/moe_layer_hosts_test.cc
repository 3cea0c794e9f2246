// SPDX-License-Identifier: Apache-2.0
// Layers of real sizes over two hosts of two ranks, with every dispatcher that works there and with
// the one that is chosen, experts of every kind of format, and with and without replicas. The
// products are so large that teams share them (kLeastSharedWork).
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/test_effort.h"
#include "comm/testing.h"
#include "experts/product_pipeline.h"
#include "layer/large_layer_testing.h"

namespace trimtab {
namespace {

using namespace large_layer;
using layer_testing::random_floats;

constexpr int kRanks = 4;
static_assert(kMaxTokens * kHidden * kInner > kLeastSharedWork);

struct Rounding {
  WeightFormat format;
  double error;  // of a row, relative to its length
};
const Rounding kRoundings[] = {
    {Scheme::kF32, 1e-5},        {Scheme::kBF16, 2e-2},        {Scheme::kW8A8, 4e-2},
    {{Scheme::kW4A8, 32}, 0.25}, {Scheme::kMXFP8, 0.15},       {Scheme::kFP8, 0.15},
    {Scheme::kMXFP4, 0.4},       {{Scheme::kW4A16, 32}, 0.25}, {Scheme::kW8A16, 3e-2}};

using Parameters = std::tuple<const char*, SplitRule, int>;
class LayerOverHosts : public testing::TestWithParam<Parameters> {};

std::string parameter_name(const testing::TestParamInfo<Parameters>& info) {
  const auto& [dispatcher, split, rounding] = info.param;
  std::string format = name(kRoundings[rounding].format);
  std::ranges::replace(format, '-', '_');
  return std::string(dispatcher) + (split == SplitRule::kStatic ? "_" : "_split_") + format;
}

INSTANTIATE_TEST_SUITE_P(
    All, LayerOverHosts,
    testing::Combine(testing::Values("auto", "hybrid", "packed", "all_gather", "all_to_all", "mc2"),
                     testing::Values(SplitRule::kStatic, SplitRule::kSplit),
                     testing::Range(0, static_cast<int>(std::size(kRoundings)))),
    parameter_name);

TEST_P(LayerOverHosts, EqualsTheLayerOnOneRank) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  TRIMTAB_SAMPLED_UNDER_SANITIZERS(4);
  const auto& [dispatcher, split, rounding] = GetParam();
  if (split != SplitRule::kStatic && dispatcher != std::string_view("auto") &&
      !dispatcher_kind(dispatcher).shares_out) {
    return;  // refused when it is made, as DispatcherKinds tests
  }
  const Model model(kRoundings[rounding].format);
  const Placement alone = Placement::linear(1, kExperts, 1);
  const Placement placements[] = {
      Placement::linear(1, kExperts, kRanks),
      Placement(1, kExperts, {3, 3, 2, 4}, {5, 0, 3, 1, 1, 4, 2, 5, 0, 3, 4, 1})};
  run_group(kRanks,
            [&](Communicator& comm) {
              // Rank 1 has no tokens.
              const int64_t tokens = comm.rank() == 1 ? 0 : kMaxTokens - comm.rank();
              const std::vector<float> x =
                  random_floats(tokens * kHidden, 70 + static_cast<uint64_t>(comm.rank()), 1.0F);
              std::vector<float> wanted(x.size()), out(x.size());
              const auto run_layer = [&](const MoeLayer& layer, Communicator& group,
                                         std::span<Communicator* const> groups, int threads,
                                         std::vector<float>& to) {
                Team team(threads);
                Workspace workspace(group.allocate(layer.workspace_bytes(kMaxTokens)));
                Lane lane{group, workspace, team, groups};
                run(layer.forward(ConstRows(x.data(), tokens, kHidden),
                                  Rows(to.data(), tokens, kHidden), lane));
              };
              const auto self = comm.split(comm.rank(), 0);
              run_layer(model.layer(alone, *self, SplitRule::kStatic,
                                    model.dispatcher(alone, *self, "pull", SplitRule::kStatic)),
                        *self, {}, 1, wanted);
              for (int64_t t = 0; t < tokens; ++t) {
                const std::vector<double> expected = model.expected(x.data() + t * kHidden);
                ASSERT_LE(distance(wanted.data() + t * kHidden, expected.data()),
                          kRoundings[rounding].error)
                    << "token " << t;
              }
              for (const Placement& placement : placements) {
                const auto made = model.dispatcher(placement, comm, dispatcher, split);
                const MoeLayer layer = model.layer(placement, comm, split, made);
                const auto owned = made->make_groups(comm);
                const auto groups = pointers_to(owned);
                // K7: experts that weigh their rows, over hosts too.
                std::vector<float> weighed(x.size());
                MoeLayer::Parts parts = model.parts(placement, comm, split, made);
                parts.experts =
                    make_grouped_experts(slots_of(placement, comm.rank(), model.experts), kHidden,
                                         model.format, made->format(), Left::kSum);
                run_layer(MoeLayer(std::move(parts)), comm, groups, 2, weighed);
                for (const int threads : {1, 3}) {
                  std::ranges::fill(out, -1.0F);
                  run_layer(layer, comm, groups, threads, out);
                  EXPECT_EQ(out, weighed) << made->name() << ", " << threads << " threads";
                  if (made->kind().order == SumOrder::kById) {
                    EXPECT_EQ(out, wanted) << made->name() << ", " << threads << " threads";
                  }
                  for (int64_t t = 0; t < tokens; ++t) {
                    ASSERT_LE(distance(out.data() + t * kHidden, wanted.data() + t * kHidden), 1e-6)
                        << made->name() << ", " << threads << " threads, token " << t;
                  }
                }
              }
            },
            // Processes find out by themselves which hosts they are on.
            {.hosts = ranks_are_processes() ? std::vector<int32_t>() : std::vector{0, 0, 1, 1}});
}

}  // namespace
}  // namespace trimtab
