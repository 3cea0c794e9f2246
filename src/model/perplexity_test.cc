// SPDX-License-Identifier: Apache-2.0
#include "trimtab/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/decoder_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// What a decoder of so many ranks measures, on rank 0.
Perplexity perplexity_of(const Model& model, const std::vector<Ids>& sequences, int ranks,
                         const PerplexityOptions& options = {}, const DecoderOptions& how = {}) {
  const Placement placement = linear_placement(model.config, ranks);
  const auto weights =
      DecoderWeights::load(model.tensors, model.config, DType::kF32, placement,
                           {.expert_parts = how.layout ? how.layout->expert_parts() : 1});
  Perplexity result;
  run_ranks(ranks, [&](Communicator& comm) {
    Decoder decoder(weights, placement, comm, how);
    const Perplexity found = measure_perplexity(decoder, sequences, options);
    if (comm.rank() == 0) result = found;
  });
  return result;
}

// The same from the logits of whole sequences, in double.
double nats_of_logits(const Model& model, const std::vector<Ids>& sequences) {
  const auto logits = all_logits(model, sequences, {});
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  double nats = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (size_t t = 0; t + 1 < sequences[i].size(); ++t) {
      const float* row = logits[i].data() + t * vocab;
      double sum = 0;
      for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
      nats += std::log(sum) - static_cast<double>(row[sequences[i][t + 1]]);
    }
  }
  return nats;
}

TEST(Perplexity, IsThatOfTheLogits) {
  const Model model = open_model("qwen3_moe");
  const auto sequences = random_prompts(model.config, {9, 1, 30, 2, 17});
  const Perplexity found = perplexity_of(model, sequences, 1);
  EXPECT_EQ(found.tokens, 8 + 29 + 1 + 16);
  EXPECT_EQ(found.windows, 4);
  const double nats = nats_of_logits(model, sequences);
  EXPECT_NEAR(found.nats, nats, 1e-5 * nats);
  EXPECT_NEAR(found.value(), std::exp(nats / 54), 1e-4 * found.value());
  EXPECT_NEAR(found.bits_per_token(), nats / 54 / std::log(2.0), 1e-4);
}

TEST(Perplexity, SameBitsForAnyRanksStepsAndLayouts) {
  const Model model = open_model("qwen3_moe");
  const auto sequences = random_prompts(model.config, {9, 30, 2, 17, 5});
  const double one = perplexity_of(model, sequences, 1).nats;
  for (const int ranks : {2, 3, 7}) EXPECT_EQ(perplexity_of(model, sequences, ranks).nats, one);
  // Windows go through several steps, and steps hold several windows.
  for (const int max_tokens : {1, 4, 20})
    EXPECT_EQ(perplexity_of(model, sequences, 2, {}, {.max_tokens = max_tokens}).nats, one);
  const DecoderOptions slices = {.layout = ParallelLayout{.tp = 2, .dp = 2}};
  EXPECT_EQ(perplexity_of(model, sequences, 4, {}, slices).nats, one);
}

TEST(Perplexity, WindowsAreSequencesOfTheirOwn) {
  const Model model = open_model("qwen3_moe");
  const auto sequences = random_prompts(model.config, {21});
  const std::span<const int32_t> ids = sequences[0];
  const auto part = [&](size_t first, size_t count) {
    return Ids(ids.begin() + static_cast<int64_t>(first),
               ids.begin() + static_cast<int64_t>(first + count));
  };
  std::vector<std::pair<int64_t, int64_t>> seen;
  const Perplexity cut = perplexity_of(
      model, sequences, 1,
      {.window = 10, .progress = [&](int64_t done, int64_t of) { seen.emplace_back(done, of); }},
      {.max_tokens = 16});
  // The 21st token alone foretells nothing.
  EXPECT_EQ(cut.nats, perplexity_of(model, {part(0, 10), part(10, 10)}, 1).nats);
  EXPECT_EQ(cut.windows, 2);
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{16, 20}, {20, 20}}));
  EXPECT_NE(cut.nats, perplexity_of(model, sequences, 1).nats);
}

TEST(Perplexity, RefusesWhatCanNotBe) {
  const Model model = open_model("qwen3_moe");
  const auto message = [&](const std::vector<Ids>& sequences, const PerplexityOptions& options) {
    try {
      perplexity_of(model, sequences, 1, options);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message({{1}, {}}, {}),
            "no sequence has two tokens, so that there is nothing to foretell");
  EXPECT_TRUE(message({{1, 2}, {1, -1}}, {}).starts_with("sequence 2 has token id -1"));
  EXPECT_TRUE(message({{1, 2}}, {.window = 1}).starts_with("a window of 1 tokens;"));
  EXPECT_TRUE(message({{1, 2}}, {.window = int64_t{1} << 40}).starts_with("a window of "));
}

}  // namespace
}  // namespace trimtab
