// SPDX-License-Identifier: Apache-2.0
// Layers in every layout: slices of tokens through whole experts, parts of every expert, routed and
// shared, or whole experts and the same tokens on every rank. They give what the layer on one rank
// gives, on one host and over several.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/test_effort.h"
#include "comm/testing.h"
#include "layer/layer_testing.h"
#include "trimtab/error.h"
#include "trimtab/expert_part.h"
#include "trimtab/layout.h"

namespace trimtab {
namespace {

using layer_testing::matrix;
using layer_testing::random_floats;

constexpr int kWidth = 256, kSize = 128, kNumExperts = 6, kPicks = 2;
constexpr int64_t kMost = 9;

struct FormatBound {
  WeightFormat format;
  // Of a row's distance to the layer of one rank, relative to its length. Only where rows that meet
  // down are rounded with one scale for all inputs does each part round otherwise than the whole.
  double bound;
};
const FormatBound kFormats[] = {{Scheme::kF32, 1e-6},        {Scheme::kBF16, 1e-6},
                                {Scheme::kW8A8, 2e-2},       {{Scheme::kW4A8, 32}, 2e-2},
                                {Scheme::kMXFP8, 1e-6},      {{Scheme::kW4A16, 32}, 1e-6},
                                {{Scheme::kW8A16, 32}, 1e-6}};

struct ExpertWeights {
  explicit ExpertWeights(uint64_t seed) : values(random_floats(3 * kWidth * kSize, seed, 0.08F)) {}
  MlpSource source() const {
    const auto part = [&](int64_t i, int64_t rows, int64_t cols) {
      return MatrixSource{reinterpret_cast<const std::byte*>(values.data() + i * kWidth * kSize),
                          DType::kF32,
                          rows,
                          cols,
                          cols,
                          1};
    };
    return {part(0, kSize, kWidth), part(1, kSize, kWidth), part(2, kWidth, kSize), {}, {}, {}};
  }
  std::shared_ptr<const Mlp> packed(int part, int parts, WeightFormat format) const {
    return std::make_shared<const Mlp>(part_of(source(), part, parts, format), Activation{},
                                       format);
  }
  std::vector<float> values;
};

struct LayoutModel {
  LayoutModel() {
    for (uint64_t e = 0; e < kNumExperts; ++e) experts.emplace_back(40 + e);
  }

  // The layer of a rank. The router is left out: ids are ready. whole: the dispatcher of whole
  // experts, an exact one.
  MoeLayer layer(const ParallelLayout& layout, int rank, WeightFormat format,
                 const char* whole = "pull") const {
    const Placement placement = placement_of_layout(layout, 1, kNumExperts);
    const Placement of_lane =
        layout.ep ? placement : placement_of_layout({.tp = layout.tp, .ep = false}, 1, kNumExperts);
    const int parts = layout.expert_parts(), part = layout.ep ? 0 : layout.tp_rank(rank);
    std::vector<std::shared_ptr<const Mlp>> slots;
    for (int s = placement.first_slot(rank); s < placement.first_slot(rank + 1); ++s)
      slots.push_back(experts[placement.logical(0)[s]].packed(part, parts, format));
    const int slices = layout.token_slices();
    const DispatchShape shape{token_slice(kMost, slices, 0).count, kWidth, kPicks, format.rows(),
                              of_lane.first_slots()};
    auto dispatcher = layout.sums_parts()
                          ? make_summed_dispatcher(shape, layout.ep ? rank : layout.tp_rank(rank))
                          : make_dispatcher(whole, shape, rank);
    if (slices > 1) dispatcher = make_sliced_dispatcher(std::move(dispatcher), kMost, slices);
    // Slices are gathered whole, so shared experts are whole there.
    const bool shared_in_parts = parts > 1 && slices == 1;
    MoeLayer::Parts made{.replicas = std::make_shared<const SplitTable>(of_lane, 0),
                         .dispatcher = std::move(dispatcher),
                         .experts = make_grouped_experts(std::move(slots), kWidth, format)};
    made.shared.emplace(
        shared_in_parts ? shared.packed(part, parts, format) : shared.packed(0, 1, format),
        std::make_shared<const Linear>(matrix(gate, 1, kWidth), VectorSource{}, DType::kF32));
    made.shared_in_parts = shared_in_parts;
    return MoeLayer(std::move(made));
  }

  std::vector<ExpertWeights> experts;
  ExpertWeights shared{60};
  std::vector<float> gate = random_floats(kWidth, 61, 0.1F);
};

struct Calls {
  std::vector<float> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
// one_expert: all tokens pick expert 1, and nobody as their second.
Calls calls(int64_t tokens, bool one_expert) {
  Calls c{random_floats(static_cast<size_t>(tokens * kWidth), 5, 1.0F), {}, {}};
  for (int64_t t = 0; t < tokens; ++t) {
    const auto first = static_cast<int32_t>(t % kNumExperts);
    c.ids.insert(c.ids.end(),
                 {one_expert ? 1 : first, one_expert ? -1 : (first + 2) % kNumExperts});
    c.weights.insert(c.weights.end(), {0.7F, 0.3F});
  }
  return c;
}

std::vector<float> output_of(const MoeLayer& layer, Communicator& comm, const Calls& c, bool apart,
                             Communicator* slices = nullptr) {
  const int64_t tokens = std::ssize(c.x) / kWidth;
  std::vector<float> out(2 * c.x.size(), -1.0F);
  Team team(1 + comm.rank() % 2);
  Workspace workspace(
      comm.allocate(layer.workspace_bytes(tokens, {.routed = true, .apart = apart})));
  Lane lane{comm, workspace, team};
  if (slices != nullptr) lane.groups = {&slices, 1};
  const Rows routed(out.data(), tokens, kWidth), shared(out.data() + c.x.size(), tokens, kWidth);
  const LayerInput in(ConstRows(c.x.data(), tokens, kWidth), c.ids, c.weights);
  run(layer.forward(in, apart ? LayerOutput(routed, shared) : LayerOutput(routed), lane));
  if (!apart) out.resize(c.x.size());
  return out;
}

void expect_near(const std::vector<float>& out, const std::vector<float>& wanted, double bound) {
  ASSERT_EQ(out.size(), wanted.size());
  for (size_t row = 0; row < out.size(); row += kWidth) {
    double error = 0, norm = 0;
    for (size_t i = row; i < row + kWidth; ++i) {
      error += std::pow(double{out[i]} - double{wanted[i]}, 2);
      norm += std::pow(double{wanted[i]}, 2);
    }
    EXPECT_LE(std::sqrt(error), bound * std::sqrt(norm) + (bound > 0 ? 1e-12 : 0))
        << "row " << row / kWidth;
  }
}

// On all ranks of the group.
void expect_same_bits(const std::vector<float>& out, Communicator& comm) {
  std::vector<float> all(out.size() * static_cast<size_t>(comm.size()));
  std::vector<int64_t> bytes(static_cast<size_t>(comm.size()));
  Pending gather = comm.all_gather_v(std::as_bytes(std::span(out)),
                                     std::as_writable_bytes(std::span(all)), bytes);
  gather.wait();
  gather.wait_released();
  for (size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(all[i], out[i % out.size()]) << "rank " << i / out.size();
}

const ParallelLayout kLayouts[] = {{.tp = 4},
                                   {.dp = 4},
                                   {.tp = 2, .dp = 2},
                                   {.tp = 2, .pcp = 2},
                                   {.tp = 4, .sp = false},
                                   {.tp = 2, .ep = false},
                                   {.tp = 4, .ep = false},
                                   {.tp = 2, .dp = 2, .ep = false},
                                   {.tp = 2, .ep = false, .pcp = 2}};

class LayoutsOfLayers : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Formats, LayoutsOfLayers,
                         testing::Range(0, static_cast<int>(std::size(kFormats))),
                         [](const auto& chosen) {
                           std::string text = name(kFormats[chosen.param].format);
                           std::ranges::replace(text, '-', '_');
                           return text;
                         });

// P1: slices may be empty, also all of a data-parallel group.
// P7: parts are summed over the tensor-parallel ranks, so that outputs are whole.
// S3: tensor-parallel shared experts: their parts are summed with the routed
//     output, or apart from it.
TEST_P(LayoutsOfLayers, GiveWhatOneRankGives) {
  const auto& [format, bound] = kFormats[GetParam()];
  const LayoutModel model;
  size_t turn = static_cast<size_t>(GetParam());
  for (const ParallelLayout& layout : kLayouts) {
    // Under a sanitizer every third layout of a format, and every third format of a layout.
    if (turn++ % 3 != 0 && few_cases()) continue;
    if (!can_have_ranks(layout.ranks())) continue;
    run_group(layout.ranks(), [&](Communicator& comm) {
      const auto self = comm.split(comm.rank(), 0);
      const LayoutGroups groups = make_layout_groups(layout, comm);
      Communicator& of_lane = groups.experts ? *groups.experts : comm;
      const int group = layout.dp_rank(comm.rank());
      const auto same_tokens = comm.split(group, comm.rank());
      const MoeLayer alone = model.layer({}, 0, format);
      const bool one_host = *std::ranges::max_element(comm.hosts()) == 0;
      const MoeLayer layer =
          model.layer(layout, comm.rank(), format, one_host ? "pull" : "all_to_all");
      for (const int64_t tokens : {int64_t{0}, int64_t{1}, int64_t{3}, kMost}) {
        for (const bool one_expert : {false, true}) {
          const Calls c = calls(group == 0 ? tokens : kMost - tokens, one_expert);
          for (const bool apart : {false, true}) {
            SCOPED_TRACE(name(layout) + ", " + std::to_string(tokens) + " tokens");
            const std::vector<float> out = output_of(layer, of_lane, c, apart, groups.tokens.get());
            expect_near(out, output_of(alone, *self, c, apart), layout.sums_parts() ? bound : 0.0);
            expect_same_bits(out, *same_tokens);
          }
        }
      }
    });
  }
}

TEST(LayoutsOfLayers, RanksWithOtherTokensAreToldSo) {
  TRIMTAB_NEEDS_RANKS(2);
  const LayoutModel model;
  const ParallelLayout layout{.tp = 2, .ep = false};
  run_group(2, [&](Communicator& comm) {
    const MoeLayer layer = model.layer(layout, comm.rank(), Scheme::kF32);
    for (int round = 0; round < 2; ++round) {
      try {
        output_of(layer, comm, calls(3 + comm.rank(), false), false);
        ADD_FAILURE() << "rank " << comm.rank();
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("all must have the same"), std::string::npos)
            << error.what();
      }
    }
    output_of(layer, comm, calls(3, false), false);  // the group goes on
  });
}

TEST(LayoutsOfLayers, PartsOfSharedExpertsNeedADispatcherThatSums) {
  const LayoutModel model;
  const std::vector<int32_t> first{0, kNumExperts};
  std::vector<std::shared_ptr<const Mlp>> slots;
  for (const ExpertWeights& expert : model.experts)
    slots.push_back(expert.packed(0, 1, Scheme::kF32));
  MoeLayer::Parts parts{
      .replicas = std::make_shared<const SplitTable>(Placement::linear(1, kNumExperts, 1), 0),
      .dispatcher = make_pull_dispatcher({kMost, kWidth, kPicks, DType::kF32, first}, 0),
      .experts = make_grouped_experts(std::move(slots), kWidth, Scheme::kF32)};
  parts.shared.emplace(model.shared.packed(0, 2, Scheme::kF32));
  parts.shared_in_parts = true;
  EXPECT_THROW(MoeLayer(std::move(parts)), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
