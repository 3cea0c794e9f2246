// SPDX-License-Identifier: Apache-2.0
// The model in models/tiny-moe against what transformers makes of it. After training it anew:
//   python3 tools/make_fixtures.py expected models/tiny-moe --out
//   tests/fixtures/tiny-moe/expected.safetensors
//     --prompt TEXT --prompt ...   (with prompts whose least margin, as it prints, is at least
//     1e-3)
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <string>

#include "model/decoder_testing.h"
#include "trimtab/generate.h"
#include "trimtab/perplexity.h"

namespace trimtab {
namespace {

struct Recorded {
  Model model;
  std::vector<Ids> prompts;
  std::vector<std::vector<float>> logits;  // [prompts][tokens, vocab]
  std::vector<Ids> greedy;                 // [prompts][64], to the first end token
};

Recorded open_recorded() {
  const std::string root = TRIMTAB_SOURCE_DIR;
  Recorded recorded = {
      {read_model_config(root + "/models/tiny-moe"), SafeTensors::open(root + "/models/tiny-moe"),
       SafeTensors::open(root + "/tests/fixtures/tiny-moe/expected.safetensors")},
      {},
      {},
      {}};
  const SafeTensors& expected = recorded.model.expected;
  const int32_t end = recorded.model.config.eos_token_ids.at(0);
  for (int i = 0; i < std::stoi(expected.metadata().at("prompts")); ++i) {
    const std::string key = "prompts." + std::to_string(i);
    recorded.prompts.push_back(values<int32_t>(expected.at(key + ".input_ids")));
    recorded.logits.push_back(values<float>(expected.at(key + ".logits")));
    Ids greedy = values<int32_t>(expected.at(key + ".greedy"));
    const auto stop = std::find(greedy.begin(), greedy.end(), end);
    greedy.erase(stop == greedy.end() ? stop : stop + 1, greedy.end());
    recorded.greedy.push_back(greedy);
  }
  return recorded;
}

double worst_error(const Recorded& recorded, const std::vector<std::vector<float>>& logits) {
  const auto cols = static_cast<size_t>(recorded.model.config.vocab_size);
  double worst = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    worst = std::max(worst, relative_error(logits[i], recorded.logits[i], cols));
  }
  return worst;
}

TEST(TinyMoe, LogitsEqualTransformersOnAnyNumberOfRanks) {
  const Recorded recorded = open_recorded();
  ASSERT_GE(recorded.prompts.size(), 4U);
  const auto one = all_logits(recorded.model, recorded.prompts, {});
  EXPECT_LE(worst_error(recorded, one), 1e-4);
  for (const int ranks : {2, 3, 4, 7}) {
    EXPECT_EQ(all_logits(recorded.model, recorded.prompts, {.ranks = ranks}), one)
        << ranks << " ranks";
    const Arrangement all_gather = {.ranks = ranks, .options = {.dispatcher = "all_gather"}};
    EXPECT_LE(worst_error(recorded, all_logits(recorded.model, recorded.prompts, all_gather)),
              1e-4);
  }
}

TEST(TinyMoe, Bf16IsWithinItsRounding) {
  const Recorded recorded = open_recorded();
  const auto logits = all_logits(recorded.model, recorded.prompts, {.dtype = DType::kBF16});
  EXPECT_LE(worst_error(recorded, logits), bf16_tolerance(recorded.model.config));
}

TEST(TinyMoe, GreedyTokensEqualTransformers) {
  const Recorded recorded = open_recorded();
  const Placement placement = linear_placement(recorded.model.config, 3);
  const auto weights =
      DecoderWeights::load(recorded.model.tensors, recorded.model.config, DType::kF32, placement);
  std::vector<Generation> generations(recorded.prompts.size());
  run_ranks(3, [&](Communicator& comm) {
    Decoder decoder(weights, placement, comm);
    generate(decoder, recorded.prompts, {.max_new_tokens = 64}, generations);
  });
  for (size_t i = 0; i < generations.size(); ++i) {
    EXPECT_EQ(generations[i].token_ids, recorded.greedy[i]) << "prompt " << i;
  }
}

// The model's prompts, and the first bytes of a page and of a program of this repository: all but
// Spanish and Russian in its domains at length.
std::vector<Ids> texts(const ModelConfig& config) {
  constexpr size_t kContext = 512;  // of the training
  const std::string root = TRIMTAB_SOURCE_DIR;
  std::vector<std::string> all;
  std::ifstream prompts(root + "/models/tiny-moe/prompts.txt");
  for (std::string line; std::getline(prompts, line);) all.push_back(line);
  for (const char* file :
       {"/docs/index.md", "/tools/train_tiny_moe.py", "/tools/make_fixtures.py"}) {
    std::ifstream in(root + file);
    std::string text(kContext - 1, '\0');
    in.read(text.data(), std::ssize(text));
    text.resize(in.gcount());
    all.push_back(text);
  }
  std::vector<Ids> sequences;
  for (const std::string& text : all) {
    Ids ids = {config.bos_token_id};
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    sequences.push_back(std::move(ids));
  }
  return sequences;
}

double bits_per_byte(const Model& model, const std::vector<Ids>& sequences, WeightFormat experts) {
  const Placement placement = linear_placement(model.config, 2);
  const auto weights =
      DecoderWeights::load(model.tensors, model.config, {DType::kBF16, experts}, placement);
  double bits = 0;
  run_ranks(2, [&](Communicator& comm) {
    Decoder decoder(weights, placement, comm);
    const Perplexity found = measure_perplexity(decoder, sequences);
    if (comm.rank() == 0) bits = found.bits_per_token();  // a token is a byte
  });
  return bits;
}

TEST(TinyMoe, QuantisedExpertsKnowNearlyAsMuch) {
  const Recorded recorded = open_recorded();
  const std::vector<Ids> sequences = texts(recorded.model.config);
  const double bf16 = bits_per_byte(recorded.model, sequences, Scheme::kBF16);
  EXPECT_GT(bf16, 0.5);
  EXPECT_LT(bf16, 4.0);
  const auto more = [&](WeightFormat format) {
    const double relative = bits_per_byte(recorded.model, sequences, format) / bf16 - 1;
    std::cout << name(format) << ": " << 100 * relative << " % more than " << bf16
              << " bits per byte\n";
    return relative;
  };
  EXPECT_LE(more(Scheme::kF16), 0.002);
  EXPECT_LE(more(Scheme::kW8A8), 0.005);
  EXPECT_LE(more(Scheme::kMXFP8), 0.005);
  EXPECT_LE(more(Scheme::kFP8), 0.005);
  EXPECT_LE(more(Scheme::kW4A8), 0.02);
  EXPECT_LE(more({Scheme::kW4A8, 32}), 0.02);
  EXPECT_LE(more(Scheme::kW4A16), 0.02);
  EXPECT_LE(more(Scheme::kW8A16), 0.002);
  // Four bits without a zero point or a fine scale: no bar, but not broken.
  EXPECT_LE(more(Scheme::kMXFP4), 0.1);
}

}  // namespace
}  // namespace trimtab
