// SPDX-License-Identifier: Apache-2.0
#include "trimtab/decoder.h"

#include <gtest/gtest.h>

#include "model/decoder_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

class DecoderFamilies : public testing::TestWithParam<const char*> {};

// Together: grouped queries, both QK norms, biases, clipping, a sliding window, dense layers,
// shared experts, tied embeddings, stretched contexts; weights in fp8 (blocks, channels, whole
// matrices), int8 and int4 (channels, groups with zero points).
INSTANTIATE_TEST_SUITE_P(All, DecoderFamilies,
                         testing::Values("mixtral", "mixtral_merged", "qwen2_moe", "qwen3_moe",
                                         "qwen3_moe_sparse", "olmoe", "qwen3_moe_fp8",
                                         "mixtral_fp8", "mixtral_fp8_tensor", "qwen2_moe_int8",
                                         "olmoe_int4", "qwen3_moe_int4", "qwen3_moe_yarn",
                                         "mixtral_linear", "olmoe_llama3"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(DecoderFamilies, EqualsTransformers) {
  const Model model = open_model(GetParam());
  const auto cols = static_cast<size_t>(model.config.vocab_size);
  const std::vector<Ids> prompt = {values<int32_t>(model.expected.at("input_ids"))};
  const auto expected = values<float>(model.expected.at("logits"));
  const auto length = static_cast<int>(prompt[0].size());
  const Arrangement one = {.options = {.max_tokens = length}};
  EXPECT_LE(relative_error(all_logits(model, prompt, one)[0], expected, cols), 1e-4);
  const Arrangement three = {.ranks = 3, .options = {.dispatcher = "all_gather", .threads = 2}};
  EXPECT_LE(relative_error(all_logits(model, prompt, three)[0], expected, cols), 1e-4);
}

TEST_P(DecoderFamilies, Bf16IsWithinItsRounding) {
  const Model model = open_model(GetParam());
  const auto cols = static_cast<size_t>(model.config.vocab_size);
  const std::vector<Ids> prompt = {values<int32_t>(model.expected.at("input_ids"))};
  const auto expected = values<float>(model.expected.at("logits"));
  const double error =
      relative_error(all_logits(model, prompt, {.dtype = DType::kBF16})[0], expected, cols);
  EXPECT_LE(error, bf16_tolerance(model.config));
  EXPECT_GT(error, 0.0);
}

TEST_P(DecoderFamilies, SameBitsOnAnyNumberOfRanks) {
  const Model model = open_model(GetParam());
  const auto prompts = random_prompts(model.config, {9, 1, 17, 4, 30});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto reference = all_logits(model, prompts, {.dtype = dtype});
    for (const int ranks : {2, 3, 4, 7}) {
      EXPECT_EQ(all_logits(model, prompts, {.ranks = ranks, .dtype = dtype}), reference)
          << ranks << " ranks";
    }
    EXPECT_EQ(all_logits(model, prompts, {.ranks = 2, .options = {.threads = 3}, .dtype = dtype}),
              reference);
  }
}

TEST_P(DecoderFamilies, AllGatherDiffersByTheOrderOfSumsOnly) {
  const Model model = open_model(GetParam());
  const auto cols = static_cast<size_t>(model.config.vocab_size);
  const auto prompts = random_prompts(model.config, {9, 1, 17});
  const auto reference = all_logits(model, prompts, {});
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const auto logits =
        all_logits(model, prompts, {.ranks = ranks, .options = {.dispatcher = "all_gather"}});
    for (size_t i = 0; i < prompts.size(); ++i)
      EXPECT_LE(relative_error(logits[i], reference[i], cols), 1e-5) << ranks;
  }
}

TEST_P(DecoderFamilies, SameBitsInAnyBatchAndForAnyChunks) {
  const Model model = open_model(GetParam());
  const auto prompts = random_prompts(model.config, {9, 33, 17});
  std::vector<std::vector<float>> alone;
  for (const Ids& prompt : prompts) alone.push_back(all_logits(model, {prompt}, {})[0]);
  for (const size_t chunk : {1U, 3U, 16U, 100U}) {
    EXPECT_EQ(all_logits(model, prompts, {.chunk = chunk}), alone) << "chunks of " << chunk;
  }
}

// Attention, dense layers and the head quantised, experts not: near the plain model, nearer with
// more bits, and the same bits however tokens are batched.
TEST_P(DecoderFamilies, QuantisedLinearMaps) {
  const Model model = open_model(GetParam());
  const auto cols = static_cast<size_t>(model.config.vocab_size);
  const auto prompts = random_prompts(model.config, {9, 33, 17});
  const auto plain = all_logits(model, prompts, {});
  const auto error = [&](WeightFormat format) {
    const auto logits = all_logits(model, prompts, {.linear = format});
    const Arrangement other = {.ranks = 2, .options = {.threads = 3}, .chunk = 5, .linear = format};
    EXPECT_EQ(all_logits(model, prompts, other), logits) << name(format);
    return relative_error(logits[1], plain[1], cols);
  };
  const double eight = error(Scheme::kW8A8), four = error({Scheme::kW4A8, 32});
  EXPECT_GT(eight, 0.0);
  EXPECT_LE(eight, 0.2);  // a pick that flips costs up to half of it
  EXPECT_LE(four, 0.5);
  EXPECT_LT(eight, four);
}

// Keys and values are rounded as they are stored, so nothing depends on the batch. Each layer
// rounds keys and values once: by 2^-9 as bf16; as i8 by half a 127th of the largest of a head's
// elements, which is about three times the root of their mean square. Where that changes a router's
// pick a row is off by more, so the bound is for the row in the middle.
TEST_P(DecoderFamilies, RoundedKeysAndValues) {
  const Model model = open_model(GetParam());
  const auto cols = static_cast<size_t>(model.config.vocab_size);
  const auto prompts = random_prompts(model.config, {30, 1, 17});
  const auto exact = all_logits(model, prompts, {});
  const double layers = model.config.num_hidden_layers;
  for (const auto& [format, rounding] :
       {std::pair{KvFormat::kBF16, 0x1p-9}, {KvFormat::kI8, 3 / 127.0 / std::sqrt(12.0)}}) {
    const auto rounded = all_logits(model, prompts, {.kv = format});
    std::vector<double> errors;
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (size_t row = 0; row < exact[i].size(); row += cols) {
        const auto of_row = [&](const std::vector<float>& all) {
          const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row);
          return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(cols));
        };
        errors.push_back(relative_error(of_row(rounded[i]), of_row(exact[i]), cols));
      }
    }
    std::ranges::sort(errors);
    EXPECT_LE(errors[errors.size() / 2], rounding * std::sqrt(2 * layers)) << name(format);
    EXPECT_GT(errors.back(), 1e-6) << name(format);
    EXPECT_EQ(all_logits(model, prompts,
                         {.ranks = 2, .options = {.threads = 3}, .chunk = 4, .kv = format}),
              rounded)
        << name(format);
  }
}

TEST(Decoder, BytesOfKeysAndValues) {
  const ModelConfig config = open_model("qwen3_moe").config;
  const size_t elements = cells(config.num_hidden_layers, config.num_key_value_heads,
                                config.head_dim + (config.head_dim + 31) / 32 * 32);
  const size_t scales = cells(config.num_hidden_layers, config.num_key_value_heads, 8);
  EXPECT_EQ(KvCache::bytes_per_position(config, KvFormat::kF32), 4 * elements);
  EXPECT_EQ(KvCache::bytes_per_position(config, KvFormat::kBF16), 2 * elements);
  EXPECT_EQ(KvCache::bytes_per_position(config, KvFormat::kI8), elements + scales);
}

TEST(Decoder, ChunksOfOneCacheFollowEachOther) {
  const Model model = open_model("qwen3_moe");
  const auto cols = static_cast<size_t>(model.config.vocab_size);
  const Ids prompt = random_prompts(model.config, {8})[0];
  const std::span<const int32_t> ids = prompt;
  const Placement placement = linear_placement(model.config, 1);
  const auto weights = DecoderWeights::load(model.tensors, model.config, DType::kF32, placement);
  std::vector<float> last(cols);
  run_ranks(1, [&](Communicator& comm) {
    Decoder decoder(weights, placement, comm, {.max_tokens = 8});
    KvCache cache(model.config, 8);
    const std::vector<Chunk> batch = {{&cache, ids.first(3)},
                                      {&cache, ids.subspan(3), Chunk::Logits::kLast}};
    decoder.step(batch, Rows(last.data(), 1, model.config.vocab_size));
    EXPECT_EQ(cache.length(), 8);
  });
  const auto all = all_logits(model, {prompt}, {})[0];
  EXPECT_EQ(last, std::vector<float>(all.end() - static_cast<std::ptrdiff_t>(cols), all.end()));
}

TEST(Decoder, ReplicasAndRulesChangeNoBit) {
  const Model model = open_model("qwen3_moe");
  const auto sequences = random_prompts(model.config, {9, 4, 1});
  const auto alone = all_logits(model, sequences, {});
  constexpr int kRanks = 3;
  const int experts = model.config.router.num_experts;
  std::vector<int32_t> logical;
  const int slots = (experts + kRanks - 1) / kRanks + 1;
  for (int s = 0; s < num_moe_layers(model.config) * kRanks * slots; ++s)
    logical.push_back(s % (kRanks * slots) % experts);
  const Placement placement(num_moe_layers(model.config), experts, std::vector<int>(kRanks, slots),
                            logical);
  const auto cost = std::make_shared<const CostModel>(
      std::vector<CostPoint>{{.rows = 1, .picoseconds = 900}, {.rows = 11, .picoseconds = 1900}});
  for (const SplitRule rule :
       {SplitRule::kStatic, SplitRule::kRoundRobin, SplitRule::kSplit, SplitRule::kTime}) {
    for (const char* dispatcher : {"auto", "all_to_all"}) {
      Arrangement arrangement{.ranks = kRanks};
      arrangement.options.dispatcher = dispatcher;
      arrangement.options.split = rule;
      arrangement.options.cost = cost;
      arrangement.placement = placement;
      EXPECT_EQ(all_logits(model, sequences, arrangement), alone)
          << dispatcher << ", rule " << static_cast<int>(rule);
    }
  }
  Arrangement refused{.ranks = 2};
  refused.options.dispatcher = "all_gather";
  refused.options.split = SplitRule::kSplit;
  EXPECT_THROW(all_logits(model, sequences, refused), InvalidArgument);
  refused.options = {.split = SplitRule::kTime};
  EXPECT_THROW(all_logits(model, sequences, refused), InvalidArgument);
}

TEST(Decoder, LoadsOnlyTheExpertsOfTheWantedRanks) {
  const Model model = open_model("qwen3_moe");
  const Placement placement = linear_placement(model.config, 4);
  const std::vector<int> wanted = {1};
  const auto all = DecoderWeights::load(model.tensors, model.config, DType::kF32, placement);
  const auto some =
      DecoderWeights::load(model.tensors, model.config, DType::kF32, placement, {.ranks = wanted});
  EXPECT_LT(some->bytes(), all->bytes());
  EXPECT_THROW(run_ranks(4, [&](Communicator& comm) { Decoder decoder(some, placement, comm); }),
               InvalidArgument);
}

// The text of the InvalidArgument that body throws.
template <class Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Decoder, RefusesModelsItDoesNotKnow) {
  const auto load = [](const Model& model, DType dtype = DType::kF32, int layers = -1) {
    const Placement placement = Placement::linear(
        layers < 0 ? num_moe_layers(model.config) : layers, model.config.router.num_experts, 1);
    DecoderWeights::load(model.tensors, model.config, dtype, placement);
  };
  EXPECT_EQ(
      refusal([&] { load(open_model("deepseek_v2")); }),
      "the decoder supports mixtral, qwen2_moe, qwen3_moe and olmoe; this model is deepseek_v2");
  Model model = open_model("qwen3_moe");
  EXPECT_EQ(refusal([&] { load(model, DType::kF16); }),
            "the decoder keeps weights as F32 or BF16, not F16");
  EXPECT_EQ(refusal([&] { load(model, DType::kF32, 3); }),
            "the placement is for 3 MoE layers of 8 experts, the model has 2 of 8");
  model.config.rope_type = "dynamic";
  EXPECT_EQ(refusal([&] { load(model); }),
            "the decoder supports the rope types default, linear, yarn and llama3; this model has "
            "dynamic");
  model.config.rope_type = "default";
  model.config.num_key_value_heads = 3;
  EXPECT_EQ(refusal([&] { load(model); }),
            "num_attention_heads 4 is not a multiple of num_key_value_heads 3");
}

TEST(Decoder, RefusesImpossibleBatches) {
  const Model model = open_model("qwen3_moe");
  const Placement placement = linear_placement(model.config, 1);
  const auto weights = DecoderWeights::load(model.tensors, model.config, DType::kF32, placement);
  const auto step = [&](const Ids& ids, int64_t capacity, int64_t rows) {
    run_ranks(1, [&](Communicator& comm) {
      Decoder decoder(weights, placement, comm, {.max_tokens = 4});
      KvCache cache(model.config, capacity);
      std::vector<float> logits(static_cast<size_t>(rows * model.config.vocab_size));
      const std::vector<Chunk> batch = {{&cache, ids, Chunk::Logits::kAll}};
      decoder.step(batch, Rows(logits.data(), rows, model.config.vocab_size));
    });
  };
  EXPECT_EQ(refusal([&] { step({1, 64}, 4, 2); }), "token id 64 is not in [0, 64)");
  EXPECT_EQ(refusal([&] { step({1, -1}, 4, 2); }), "token id -1 is not in [0, 64)");
  EXPECT_EQ(refusal([&] { step({1, 2, 3, 4, 5}, 5, 5); }),
            "a step of 5 tokens; the decoder is made for 4");
  EXPECT_EQ(refusal([&] { step({1, 2, 3}, 2, 3); }), "a cache of 2 positions is full");
  EXPECT_EQ(refusal([&] { step({1, 2, 3}, 3, 2); }),
            "logits are F32 [2, 64], the batch wants F32 [3, 64]");
  EXPECT_EQ(refusal([&] { step({1}, 0, 1); }), "a cache needs at least 1 position, not 0");
  EXPECT_EQ(refusal([&] {
              run_ranks(2, [&](Communicator& comm) { Decoder decoder(weights, placement, comm); });
            }),
            "the placement is for 1 ranks, 2 MoE layers of 8 experts; there are 2, 2 and 8");
}

// More positions than a block of the cache has.
TEST(Decoder, CachesAreCutAndCopied) {
  const Model model = open_model("qwen3_moe");
  const auto prompts = random_prompts(model.config, {300, 20});
  const std::span<const int32_t> ids = prompts[0], others = prompts[1];
  const Placement placement = linear_placement(model.config, 1);
  const auto weights = DecoderWeights::load(model.tensors, model.config, DType::kF32, placement);
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kI8}) {
    run_ranks(1, [&](Communicator& comm) {
      Decoder decoder(weights, placement, comm, {.max_tokens = 300});
      const auto last = [&](KvCache& cache, std::span<const int32_t> tokens) {
        std::vector<float> logits(static_cast<size_t>(model.config.vocab_size));
        const Chunk chunk{&cache, tokens, Chunk::Logits::kLast};
        decoder.step({&chunk, 1}, Rows(logits.data(), 1, model.config.vocab_size));
        return logits;
      };
      KvCache cache(model.config, 320, format);
      const auto all = last(cache, ids);
      cache.truncate(270);
      KvCache copy = cache.copy();
      EXPECT_EQ(copy.length(), 270);
      EXPECT_EQ(copy.capacity(), 320);
      EXPECT_EQ(copy.format(), format);
      EXPECT_NE(last(cache, others), all);  // where the cut positions were
      EXPECT_EQ(last(copy, ids.subspan(270)), all);
      cache.truncate(270);
      EXPECT_EQ(last(cache, ids.subspan(270)), all);
      EXPECT_EQ(refusal([&] { cache.truncate(301); }),
                "a cache of 300 positions can't be cut to 301");
      EXPECT_NE(refusal([&] { cache.truncate(-1); }), "");
    });
  }
}

// R12: forced balance is no load: nobody may record it. tests/cli/run_ranks_test.cc tests how level
// it is.
TEST(Decoder, StepsWithForcedBalanceTakeNoRecorder) {
  const Model model = open_model("qwen3_moe");
  const Placement placement = linear_placement(model.config, 1);
  const auto weights = DecoderWeights::load(model.tensors, model.config, DType::kF32, placement);
  run_ranks(1, [&](Communicator& comm) {
    Decoder decoder(weights, placement, comm, {.force_balance = true});
    LoadRecorder recorder(placement.num_layers(), placement.slots_of_rank(0), 1);
    KvCache cache(model.config, 8);
    const Ids ids = {1, 2};
    const Chunk chunk{&cache, ids};
    recorder.begin_step(Phase::kPrefill);
    const Rows none(static_cast<float*>(nullptr), 0, model.config.vocab_size);
    EXPECT_NE(refusal([&] { decoder.step({&chunk, 1}, none, &recorder); }), "");
    decoder.step({&chunk, 1}, none);
    EXPECT_EQ(cache.length(), 2);
  });
}

TEST(Decoder, RanksThatDifferAreRefusedOnEveryRank) {
  const Model model = open_model("qwen3_moe");
  constexpr int kRanks = 3;
  const Placement placement = linear_placement(model.config, kRanks);
  std::vector<int> slots_per_rank;
  for (int rank = 0; rank < kRanks; ++rank) slots_per_rank.push_back(placement.slots_of_rank(rank));
  std::vector<int32_t> swapped;
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    const auto slots = placement.logical(layer);
    swapped.insert(swapped.end(), slots.begin(), slots.end());
  }
  std::swap(swapped.front(), swapped[placement.num_slots() - 1]);
  const Placement other(placement.num_layers(), placement.num_experts(), slots_per_rank, swapped);
  const auto load = [&](DType dtype) {
    return DecoderWeights::load(model.tensors, model.config, dtype, placement);
  };
  const auto weights = load(DType::kF32), rounded = load(DType::kBF16);
  const auto expect_named = [&](const char* named, const auto& decoder_of_last) {
    std::vector<std::string> errors(kRanks);
    run_ranks(kRanks, [&](Communicator& comm) {
      errors[comm.rank()] = refusal([&] {
        if (comm.rank() < kRanks - 1) {
          const Decoder decoder(weights, placement, comm);
        } else {
          decoder_of_last(comm);
        }
      });
    });
    EXPECT_NE(errors[0].find(named), std::string::npos) << errors[0];
    for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  };
  expect_named("DecoderOptions::max_tokens: 256 on rank 0, 64 on rank 2", [&](Communicator& comm) {
    const Decoder decoder(weights, placement, comm, {.max_tokens = 64});
  });
  expect_named("DecoderOptions::dispatcher: auto on rank 0, packed on rank 2",
               [&](Communicator& comm) {
                 const Decoder decoder(weights, placement, comm, {.dispatcher = "packed"});
               });
  expect_named("DecoderOptions::row_budget: 1.5 on rank 0, 0 on rank 2", [&](Communicator& comm) {
    const Decoder decoder(weights, placement, comm, {.row_budget = 0});
  });
  expect_named("DecoderOptions::split: ", [&](Communicator& comm) {
    const Decoder decoder(weights, placement, comm, {.split = SplitRule::kSplit});
  });
  expect_named("DecoderOptions::cost", [&](Communicator& comm) {
    const Decoder decoder(weights, placement, comm,
                          {.cost = std::make_shared<const CostModel>(CostModel::of_rows())});
  });
  expect_named("the placement",
               [&](Communicator& comm) { const Decoder decoder(weights, other, comm); });
  expect_named("the dtype of the weights",
               [&](Communicator& comm) { const Decoder decoder(rounded, placement, comm); });
}

}  // namespace
}  // namespace trimtab
