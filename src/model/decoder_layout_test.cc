// SPDX-License-Identifier: Apache-2.0
// Decoders over layouts: the same logits, texts and routes as on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/decoder_testing.h"
#include "trimtab/error.h"
#include "trimtab/generate.h"
#include "trimtab/layout.h"

namespace trimtab {
namespace {

// pull keeps the order of additions, so whole experts give the bits of one rank.
bool is_exact_layout(const ParallelLayout& layout) {
  return !layout.sums_parts();
}

const ParallelLayout kLayouts[] = {{.tp = 2},
                                   {.tp = 3, .dp = 2},
                                   {.tp = 2, .dp = 1, .pcp = 2},
                                   {.dp = 2, .pcp = 2},
                                   {.tp = 2, .sp = false},
                                   {.tp = 2, .ep = false},
                                   {.tp = 4, .ep = false},
                                   {.tp = 2, .dp = 2, .ep = false},
                                   {.tp = 2, .dp = 2, .ep = false, .pcp = 2}};

struct Written {
  std::vector<Generation> generations;
  int64_t steps = 0, overlapped_steps = 0;  // of rank 0
};

Written write(const Model& model, const std::vector<Ids>& prompts, const ParallelLayout& layout,
              DType dtype, std::span<const std::vector<int32_t>> replay = {},
              bool overlap = false) {
  const Placement placement =
      placement_of_layout(layout, num_moe_layers(model.config), model.config.router.num_experts);
  const auto weights = DecoderWeights::load(model.tensors, model.config, {dtype, dtype}, placement,
                                            {.expert_parts = layout.expert_parts()});
  Written written;
  written.generations.resize(prompts.size());
  GenerateOptions how{.max_new_tokens = 6, .keep_routes = true, .replay = replay};
  run_ranks(layout.ranks(), [&](Communicator& comm) {
    Decoder decoder(weights, placement, comm,
                    {.layout = layout, .max_tokens = 7, .overlap = overlap});
    GenerateOptions own = how;
    if (comm.rank() == 0) {
      own.progress = [&](const GenerateProgress& progress) {
        written.steps = progress.steps;
        if (progress.unfinished_prompts > 0) return;
        EXPECT_EQ(progress.new_tokens, 6 * std::ssize(prompts));
      };
    }
    generate(decoder, prompts, own, written.generations);
    if (comm.rank() == 0) written.overlapped_steps = decoder.overlapped_steps();
  });
  return written;
}

// P1, P2, P6: tokens are cut over the ranks that have the same ones, and gathered.
// Qwen2-MoE has shared experts with a gate; more groups than prompts leave ranks without tokens.
TEST(DecoderLayouts, GiveTheTextAndTheRoutesOfOneRank) {
  for (const char* family : {"qwen2_moe", "qwen3_moe"}) {
    Model model = open_model(family);
    model.config.eos_token_ids.clear();
    for (const size_t num_prompts : {size_t{1}, size_t{3}}) {
      const std::vector<Ids> prompts =
          random_prompts(model.config, std::vector<size_t>(num_prompts, 9));
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const Written alone = write(model, prompts, {}, dtype);
        for (const ParallelLayout& layout : kLayouts) {
          SCOPED_TRACE(std::string(family) + ", " + name(layout) + ", " + std::string(name(dtype)));
          const Written written = write(model, prompts, layout, dtype);
          for (size_t i = 0; i < prompts.size(); ++i) {
            if (dtype == DType::kF32 || is_exact_layout(layout)) {
              EXPECT_EQ(written.generations[i].token_ids, alone.generations[i].token_ids);
              EXPECT_EQ(written.generations[i].routes, alone.generations[i].routes);
            }
            EXPECT_EQ(written.generations[i].token_ids.size(), 6U);
          }
        }
      }
    }
  }
}

// Two microbatches give the bits of one, and their routes, whatever the layout; steps in which some
// rank has less than two tokens are one.
TEST(DecoderLayouts, OverlapGivesTheSame) {
  Model model = open_model("qwen2_moe");
  model.config.eos_token_ids.clear();
  for (const size_t num_prompts : {size_t{1}, size_t{8}}) {
    const std::vector<Ids> prompts =
        random_prompts(model.config, std::vector<size_t>(num_prompts, 9));
    std::vector<ParallelLayout> layouts(std::begin(kLayouts), std::end(kLayouts));
    layouts.push_back({.dp = 3});
    layouts.push_back({});
    for (const ParallelLayout& layout : layouts) {
      SCOPED_TRACE(name(layout) + ", " + std::to_string(num_prompts) + " prompts");
      const Written plain = write(model, prompts, layout, DType::kF32);
      const Written halves = write(model, prompts, layout, DType::kF32, {}, true);
      EXPECT_EQ(plain.overlapped_steps, 0);
      EXPECT_EQ(halves.steps, plain.steps);
      EXPECT_LE(halves.overlapped_steps, halves.steps);
      // A step has 7 tokens at most; ranks with whole experts agree with those of all groups.
      EXPECT_EQ(halves.overlapped_steps > 0,
                layout.token_slices() < 4 && (num_prompts > 1 || !layout.ep || layout.dp == 1));
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(halves.generations[i].token_ids, plain.generations[i].token_ids);
        EXPECT_EQ(halves.generations[i].routes, plain.generations[i].routes);
      }
    }
  }
}

TEST(DecoderLayouts, ReplayRoutes) {
  Model model = open_model("qwen3_moe");
  model.config.eos_token_ids.clear();
  const std::vector<Ids> prompts = random_prompts(model.config, {5, 11});
  const Written alone = write(model, prompts, {}, DType::kF32);
  std::vector<std::vector<int32_t>> routes;
  for (const Generation& generation : alone.generations) {
    routes.push_back(generation.routes);
    for (int32_t& expert : routes.back()) {  // others than the router picks
      if (expert >= 0) expert = (expert + 1) % model.config.router.num_experts;
    }
  }
  const Written replayed = write(model, prompts, {}, DType::kF32, routes);
  for (const ParallelLayout& layout : {kLayouts[1], kLayouts[2], kLayouts[5]}) {
    const Written written = write(model, prompts, layout, DType::kF32, routes);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(written.generations[i].token_ids, replayed.generations[i].token_ids);
      EXPECT_EQ(written.generations[i].routes, routes[i]);
    }
  }
}

TEST(DecoderLayouts, AreRefusedWhereTheyDoNotFit) {
  const Model model = open_model("qwen3_moe");
  const int layers = num_moe_layers(model.config), experts = model.config.router.num_experts;
  const auto refused = [&](int parts, const ParallelLayout& of_placement, DecoderOptions options) {
    const Placement placement = placement_of_layout(of_placement, layers, experts);
    const auto weights = DecoderWeights::load(model.tensors, model.config, DType::kF32, placement,
                                              {.expert_parts = parts});
    std::string text;
    try {
      run_ranks(2, [&](Communicator& comm) { Decoder(weights, placement, comm, options); });
    } catch (const InvalidArgument& error) {
      text = error.what();
    }
    return text;
  };
  const ParallelLayout parts{.tp = 2, .ep = false};
  EXPECT_NE(refused(1, parts, {.layout = parts}).find("in 1 parts"), std::string::npos);
  EXPECT_NE(refused(2, data_parallel(2), {.layout = parts}).find("placement"), std::string::npos);
  EXPECT_NE(refused(2, parts, {.dispatcher = "pull", .layout = parts}).find("pull"),
            std::string::npos);
  EXPECT_NE(refused(1, data_parallel(2), {.layout = ParallelLayout{.tp = 3}}).find("not 2 ranks"),
            std::string::npos);
  // Each rank would send an expert's tokens to a replica of its own, and they would count twice.
  EXPECT_NE(refused(1, parts, {.layout = ParallelLayout{.tp = 2, .sp = false}}).find("replicas"),
            std::string::npos);
  EXPECT_EQ(refused(2, parts, {.layout = parts}), "");
  const Placement whole = placement_of_layout(parts, layers, experts);
  // The parts would be narrower than what shares a scale.
  EXPECT_THROW(
      DecoderWeights::load(model.tensors, model.config, {DType::kF32, WeightFormat(Scheme::kMXFP8)},
                           whole, {.expert_parts = 2}),
      InvalidArgument);
  EXPECT_THROW(DecoderWeights::load(model.tensors, model.config, DType::kF32, whole,
                                    {.routed = RoutedExperts::kInSlots, .expert_parts = 2}),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab
