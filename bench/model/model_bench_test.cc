// SPDX-License-Identifier: Apache-2.0
#include "bench/model/model_bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

struct TinyMoe {
  const std::string folder = std::string(TRIMTAB_SOURCE_DIR) + "/models/tiny-moe";
  const ModelConfig config = read_model_config(folder);
  const SafeTensors tensors = SafeTensors::open(folder);

  // body(bench, weights): on every rank.
  void run(int ranks, const DecoderFormats& formats,
           const std::function<void(Communicator&, ModelBench&, const DecoderWeights&)>& body) {
    const Placement placement =
        Placement::linear(num_moe_layers(config), config.router.num_experts, ranks);
    const auto weights = DecoderWeights::load(tensors, config, formats, placement);
    run_ranks(ranks, [&](Communicator& comm) {
      Decoder decoder(weights, placement, comm, {.max_tokens = 16, .threads = 2});
      ModelBench bench(decoder, *weights, placement, KvFormat::kF32,
                       {.seconds = 0, .least = 3, .cold_bytes = size_t{4} << 20});
      body(comm, bench, *weights);
    });
  }
};

TEST(ModelBench, CountsWhatADecodeStepReads) {
  TinyMoe model;
  const ModelConfig& config = model.config;
  const double kv = static_cast<double>(KvCache::bytes_per_position(config, KvFormat::kF32));
  for (const int ranks : {1, 2}) {
    model.run(ranks, DType::kBF16, [&](Communicator&, ModelBench& bench, const DecoderWeights& w) {
      const WeightBytes bytes = w.bytes_by_use();
      EXPECT_EQ(bytes.total(), w.bytes());
      EXPECT_EQ(bytes.routed, w.expert_bytes() * static_cast<size_t>(config.router.num_experts) *
                                  static_cast<size_t>(num_moe_layers(config)));
      const ModelRow row = bench.decode(1, 40);
      EXPECT_EQ(row.steps, 1);
      EXPECT_EQ(row.rounds, 3);
      // Every token picks top_k experts of its own; those of two ranks' tokens may be the same, but
      // then on one rank.
      EXPECT_LE(row.active_experts, ranks * config.router.top_k);
      EXPECT_GE(row.active_experts, config.router.top_k);
      if (ranks == 1) {
        EXPECT_EQ(row.active_experts, config.router.top_k);
      }
      const double read =
          row.active_experts * num_moe_layers(config) * static_cast<double>(w.expert_bytes()) +
          ranks * (static_cast<double>(bytes.others + bytes.head) + 41 * kv);
      EXPECT_NEAR(row.bytes, read, 1e-6 * read);
      EXPECT_NEAR(row.tokens_per_second, ranks * 1e3 / row.ms.median, 1e-6 * row.tokens_per_second);
      EXPECT_GT(row.pct_roof.median, 0);
      EXPECT_GT(row.pct_stream.median, 0);
      EXPECT_GT(bench.stream(), 0);
    });
  }
}

TEST(ModelBench, PromptsGoThroughInFullSteps) {
  TinyMoe model;
  const double kv = static_cast<double>(KvCache::bytes_per_position(model.config, KvFormat::kF32));
  model.run(1, {DType::kBF16, Scheme::kW4A8},
            [&](Communicator&, ModelBench& bench, const DecoderWeights& w) {
              const ModelRow row = bench.prefill(40);  // steps of 16, 16 and 8 tokens
              EXPECT_EQ(row.steps, 3);
              EXPECT_EQ(row.tokens, 40);
              const WeightBytes bytes = w.bytes_by_use();
              const double read = 3 * static_cast<double>(bytes.others) +
                                  static_cast<double>(bytes.head) + (16 + 32 + 40) * kv +
                                  3 * row.active_experts * num_moe_layers(model.config) *
                                      static_cast<double>(w.expert_bytes());
              EXPECT_NEAR(row.bytes, read, 1e-6 * read);
              EXPECT_NEAR(row.tokens_per_second, 40e3 / row.ms.median, 1e-6);
            });
}

TEST(ModelBench, ManySequencesHaveTheirOwnExperts) {
  TinyMoe model;
  model.run(1, DType::kF32, [&](Communicator&, ModelBench& bench, const DecoderWeights&) {
    const double one = bench.decode(1, 20).active_experts;
    const ModelRow row = bench.decode(8, 0);
    EXPECT_GT(row.active_experts, one);
    EXPECT_NEAR(row.tokens_per_second, 8e3 / row.ms.median, 1e-6 * row.tokens_per_second);
  });
}

TEST(ModelBench, RefusesWhatDoesNotFit) {
  TinyMoe model;
  const auto refusal = [&](const std::function<void(ModelBench&)>& body) {
    std::string message;
    model.run(2, DType::kF32, [&](Communicator& comm, ModelBench& bench, const DecoderWeights&) {
      try {
        body(bench);
      } catch (const InvalidArgument& error) {
        if (comm.rank() == 0) message = error.what();
      }
    });
    return message;
  };
  const int most = model.config.max_position_embeddings;
  EXPECT_TRUE(refusal([&](ModelBench& bench) {
                bench.prefill(most + 1);
              }).ends_with("max_position_embeddings of the model is " + std::to_string(most)));
  EXPECT_TRUE(refusal([&](ModelBench& bench) { bench.decode(1, most); }).size() > 0);
  EXPECT_TRUE(refusal([&](ModelBench& bench) {
                bench.decode(int64_t{1} << 40, 100);
              }).starts_with("keys and values of 1099511627776 sequences of 101 positions"));
}

}  // namespace
}  // namespace trimtab::bench
