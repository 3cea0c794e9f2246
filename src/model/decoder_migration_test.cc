// SPDX-License-Identifier: Apache-2.0
// Decoders whose experts move while they run.
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <random>
#include <thread>
#include <utility>

#include "model/decoder_testing.h"
#include "trimtab/error.h"
#include "trimtab/migrator.h"

namespace trimtab {
namespace {

// One redundant slot a rank; every expert somewhere, all else by chance.
Placement random_placement(const ModelConfig& config, int ranks, std::mt19937& random) {
  const int experts = config.router.num_experts;
  std::vector<int> slots(ranks);
  for (int r = 0; r < ranks; ++r) slots[r] = experts * (r + 1) / ranks - experts * r / ranks + 1;
  std::vector<int32_t> logical;
  for (int l = 0; l < num_moe_layers(config); ++l) {
    std::vector<int32_t> layer(experts + ranks);
    for (int32_t& id : layer) id = static_cast<int32_t>(random() % static_cast<unsigned>(experts));
    for (int e = 0; e < experts; ++e) layer[e] = e;
    std::shuffle(layer.begin(), layer.end(), random);
    logical.insert(logical.end(), layer.begin(), layer.end());
  }
  return {num_moe_layers(config), experts, slots, std::move(logical)};
}

// `placement` with one layer of `next`.
Placement with_layer(const Placement& placement, const Placement& next, int layer) {
  std::vector<int32_t> logical;
  for (int l = 0; l < placement.num_layers(); ++l) {
    const auto of = (l == layer ? next : placement).logical(l);
    logical.insert(logical.end(), of.begin(), of.end());
  }
  return placement.with(std::move(logical), placement.version() + 1);
}

// Logits of all tokens, three a step; sequence r on rank r. In every step one layer's experts are
// on their way.
std::vector<std::vector<float>> logits_under_migration(const Model& model,
                                                       std::span<const Ids> sequences,
                                                       const Arrangement& arrangement) {
  const int ranks = arrangement.ranks;
  const auto vocab = model.config.vocab_size;
  std::vector<std::vector<float>> logits(sequences.size());
  run_ranks(ranks, [&](Communicator& comm) {
    std::mt19937 random(17);
    Placement placement = random_placement(model.config, ranks, random);
    const auto weights =
        DecoderWeights::load(model.tensors, model.config, {arrangement.dtype, arrangement.experts},
                             placement, {.routed = RoutedExperts::kInSlots});
    const auto slots = weights->expert_slots(placement, comm, placement.slots_of_rank(comm.rank()));
    Migrator migrator(*slots, placement.first_slots(), comm.duplicate());
    Decoder decoder(weights, placement, comm, arrangement.options, slots.get());
    const auto mine = static_cast<size_t>(comm.rank());
    const std::span<const int32_t> ids = sequences[mine];
    KvCache cache(model.config, std::ssize(ids));
    constexpr size_t kChunk = 3;
    for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
      const int layer = static_cast<int>(random() % static_cast<unsigned>(placement.num_layers()));
      const Placement next =
          with_layer(placement, random_placement(model.config, ranks, random), layer);
      StageResult staged;
      std::exception_ptr error;
      std::jthread background([&] {
        try {
          staged = migrator.stage(plan_moves(placement, next, layer));
        } catch (...) {
          error = std::current_exception();
        }
      });
      const auto tokens = ids.subspan(begin, std::min(kChunk, ids.size() - begin));
      const std::vector<Chunk> batch = {{&cache, tokens, Chunk::Logits::kAll}};
      std::vector<float> out(tokens.size() * static_cast<size_t>(vocab));
      decoder.step(batch, Rows(out.data(), std::ssize(tokens), vocab));
      logits[mine].insert(logits[mine].end(), out.begin(), out.end());
      background.join();
      if (error) std::rethrow_exception(error);
      ASSERT_TRUE(staged.ok) << staged.reason;
      if (migrator.staged_layer() < 0) continue;
      migrator.commit(layer);
      decoder.replace_layer(layer, slots->experts(layer),
                            std::make_shared<const SplitTable>(next, layer, comm.hosts()));
      placement = next;
    }
  });
  return logits;
}

class DecoderMigration : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, DecoderMigration,
                         testing::Values("qwen3_moe", "qwen2_moe_int8", "olmoe_int4",
                                         "mixtral_fp8"),
                         [](const auto& param) { return std::string(param.param); });

// The reference: a fixed placement without redundant experts, on one rank.
TEST_P(DecoderMigration, LogitsDoNotChangeByABit) {
  const Model model = open_model(GetParam());
  const auto sequences = random_prompts(model.config, std::vector<size_t>(7, 25));
  const WeightFormat native = native_expert_format(model);
  std::vector<WeightFormat> formats = {native};
  if (native == WeightFormat(Scheme::kF32)) {
    formats.insert(formats.end(), {Scheme::kBF16,
                                   Scheme::kF16,
                                   Scheme::kW8A8,
                                   {Scheme::kW4A8, 32},
                                   Scheme::kMXFP8,
                                   Scheme::kFP8,
                                   Scheme::kMXFP4,
                                   {Scheme::kW4A16, 32},
                                   Scheme::kW8A16});
  }
  for (const WeightFormat format : formats) {
    const auto reference = all_logits(model, sequences, {.experts = format});
    for (const auto& [ranks, rule] :
         {std::pair{1, SplitRule::kStatic}, std::pair{2, SplitRule::kSplit},
          std::pair{4, SplitRule::kRoundRobin}, std::pair{7, SplitRule::kSplit}}) {
      SCOPED_TRACE(testing::Message() << name(format) << ", " << ranks << " ranks");
      const std::span<const Ids> mine = std::span(sequences).first(ranks);
      const auto logits = logits_under_migration(
          model, mine, {.ranks = ranks, .options = {.split = rule}, .experts = format});
      EXPECT_TRUE(std::ranges::equal(logits, std::span(reference).first(mine.size())));
    }
  }
}

TEST(RedundantExperts, GiveTheSameLogitsFromWeightsThatAllShare) {
  const Model model = open_model("qwen3_moe");
  const auto prompts = random_prompts(model.config, {9, 5, 20});
  const auto reference = all_logits(model, prompts, {});
  std::mt19937 random(5);
  for (const int ranks : {2, 3}) {
    for (int trial = 0; trial < 3; ++trial) {
      const Placement placement = random_placement(model.config, ranks, random);
      EXPECT_EQ(all_logits(model, prompts, {.ranks = ranks, .placement = placement}), reference);
    }
  }
}

TEST(ExpertSlotsOfADecoder, AreTheOnlyCopyOfTheRoutedExperts) {
  const Model model = open_model("qwen3_moe");
  const Placement placement = linear_placement(model.config, 1);
  const auto load = [&](RoutedExperts routed) {
    return DecoderWeights::load(model.tensors, model.config, DType::kF32, placement,
                                {.routed = routed});
  };
  const auto shared = load(RoutedExperts::kShared), in_slots = load(RoutedExperts::kInSlots);
  run_ranks(1, [&](Communicator& comm) {
    const auto slots = in_slots->expert_slots(placement, comm, 0);
    const size_t experts = static_cast<size_t>(slots->num_layers() * slots->num_slots());
    EXPECT_GE(slots->bytes(), shared->bytes() - in_slots->bytes());
    // Headers and borders of 64 bytes.
    EXPECT_LE(slots->bytes(), shared->bytes() - in_slots->bytes() + experts * 1024);
    EXPECT_THROW(Decoder(in_slots, placement, comm), InvalidArgument);
    // Slots of another placement.
    std::mt19937 random(1);
    const Placement other = random_placement(model.config, 1, random);
    EXPECT_THROW(Decoder(in_slots, other, comm, {}, slots.get()), InvalidArgument);
    std::vector<int32_t> swapped(placement.logical(0).begin(), placement.logical(0).end());
    std::swap(swapped[1], swapped[2]);
    const Placement wrong =
        with_layer(placement,
                   Placement(2, 8, {8},
                             [&] {
                               auto twice = swapped;
                               twice.insert(twice.end(), swapped.begin(), swapped.end());
                               return twice;
                             }()),
                   1);
    EXPECT_THROW(Decoder(in_slots, wrong, comm, {}, slots.get()), InvalidArgument);
    Decoder decoder(in_slots, placement, comm, {}, slots.get());
    const auto table = std::make_shared<const SplitTable>(placement, 0);
    EXPECT_THROW(decoder.replace_layer(2, slots->experts(0), table), InvalidArgument);
    EXPECT_THROW(
        decoder.replace_layer(0, slots->experts(0), std::make_shared<const SplitTable>(other, 0)),
        InvalidArgument);
  });
}

}  // namespace
}  // namespace trimtab
