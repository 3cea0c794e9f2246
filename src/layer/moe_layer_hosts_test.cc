// SPDX-License-Identifier: Apache-2.0
// Layers of real sizes over two hosts of two ranks, with every dispatcher that works there and with
// the one that is chosen, experts of every kind of format, and with and without replicas. The
// products are so large that teams share them (kLeastSharedWork).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/testing.h"
#include "experts/product_pipeline.h"
#include "layer/layer_testing.h"
#include "trimtab/dispatch_choice.h"

namespace trimtab {
namespace {

using layer_testing::matrix;
using layer_testing::random_floats;
using layer_testing::slots_of;

constexpr int kHidden = 256, kInner = 160, kExperts = 6, kTopK = 2, kRanks = 4;
constexpr int64_t kMaxTokens = 24;
static_assert(kMaxTokens * kHidden * kInner > kLeastSharedWork);

// Weights, packed once for each format.
struct Model {
  explicit Model(WeightFormat f) : format(f) {
    for (int e = 0; e < kExperts; ++e) {
      weights.push_back(random_floats(3 * kHidden * kInner, 10 + static_cast<uint64_t>(e), 0.06F));
      const float* const values = weights.back().data();
      constexpr int64_t kSize = kHidden * kInner;
      const auto part = [&](int64_t i, int64_t rows, int64_t cols) {
        return MatrixSource{reinterpret_cast<const std::byte*>(values + i * kSize),
                            DType::kF32,
                            rows,
                            cols,
                            cols,
                            1};
      };
      experts.push_back(std::make_shared<const Mlp>(MlpSource{part(0, kInner, kHidden),
                                                              part(1, kInner, kHidden),
                                                              part(2, kHidden, kInner),
                                                              {},
                                                              {},
                                                              {}},
                                                    Activation{}, format));
    }
    gate = std::make_shared<const Linear>(matrix(gate_weight, kExperts, kHidden), VectorSource{},
                                          DType::kF32);
    router = std::make_shared<const Router>(RouterConfig{.num_experts = kExperts, .top_k = kTopK});
  }

  // by_name: a name or "auto".
  std::shared_ptr<const Dispatcher> dispatcher(const Placement& placement, Communicator& comm,
                                               std::string_view by_name, SplitRule split) const {
    const DispatchSituation situation{.ranks = comm.size(),
                                      .hosts = 1 + *std::ranges::max_element(comm.hosts()),
                                      .shares_out = split != SplitRule::kStatic};
    DispatchShape shape{kMaxTokens, kHidden, kTopK, format.rows(), placement.first_slots()};
    if (split != SplitRule::kStatic) shape.num_experts = kExperts;
    return make_dispatcher(choose_dispatcher(situation, by_name).dispatcher, shape, comm.rank(),
                           comm.hosts());
  }
  MoeLayer layer(const Placement& placement, Communicator& comm, SplitRule split,
                 std::shared_ptr<const Dispatcher> made) const {
    const Format rows = made->format();
    return MoeLayer({.gate = gate,
                     .router = router,
                     .replicas = std::make_shared<const SplitTable>(placement, 0, comm.hosts()),
                     .split = split,
                     .dispatcher = std::move(made),
                     .experts = make_grouped_experts(slots_of(placement, comm.rank(), experts),
                                                     kHidden, format, rows)});
  }

  // In double, from the weights before they are packed.
  std::vector<double> expected(const float* x) const {
    std::array<double, kExperts> logits;
    for (int e = 0; e < kExperts; ++e)
      logits[e] = layer_testing::dot(gate_weight.data() + e * kHidden, x, kHidden);
    std::vector<double> y(kHidden, 0.0);
    std::array<int, kTopK> picks{0, 0};
    for (int k = 0; k < kTopK; ++k) {
      double best = -1e30;
      for (int e = 0; e < kExperts; ++e) {
        if ((k == 0 || e != picks[0]) && logits[e] > best) best = logits[picks[k] = e];
      }
    }
    double sum = 0;
    for (const int e : picks) sum += std::exp(logits[e]);
    for (const int e : picks) {
      const float* const gate_rows = weights[e].data();
      const float* const up_rows = gate_rows + kHidden * kInner;
      const float* const down_rows = up_rows + kHidden * kInner;
      std::array<double, kInner> act;
      for (int i = 0; i < kInner; ++i) {
        const double g = layer_testing::dot(gate_rows + i * kHidden, x, kHidden);
        act[i] = g / (1 + std::exp(-g)) * layer_testing::dot(up_rows + i * kHidden, x, kHidden);
      }
      for (int h = 0; h < kHidden; ++h) {
        double element = 0;
        for (int i = 0; i < kInner; ++i) element += act[i] * double{down_rows[h * kInner + i]};
        y[h] += std::exp(logits[e]) / sum * element;
      }
    }
    return y;
  }

  WeightFormat format;
  std::vector<float> gate_weight = random_floats(kExperts * kHidden, 1, 0.1F);
  std::vector<std::vector<float>> weights;  // [experts] gate, up and down
  std::vector<std::shared_ptr<const Mlp>> experts;
  std::shared_ptr<const Linear> gate;
  std::shared_ptr<const Router> router;
};

// Distance of two rows over the length of the second.
template <class Wanted>
double distance(const float* row, const Wanted* wanted) {
  double error = 0, norm = 0;
  for (int h = 0; h < kHidden; ++h) {
    error += std::pow(double{row[h]} - double{wanted[h]}, 2);
    norm += std::pow(double{wanted[h]}, 2);
  }
  return std::sqrt(error / norm);
}

struct Rounding {
  WeightFormat format;
  double error;  // of a row, relative to its length
};
const Rounding kRoundings[] = {{Scheme::kF32, 1e-5},   {Scheme::kBF16, 2e-2},
                               {Scheme::kW8A8, 4e-2},  {{Scheme::kW4A8, 32}, 0.25},
                               {Scheme::kMXFP8, 0.15}, {Scheme::kFP8, 0.15},
                               {Scheme::kMXFP4, 0.4}};

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
                for (const int threads : {1, 3}) {
                  std::ranges::fill(out, -1.0F);
                  run_layer(layer, comm, groups, threads, out);
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
