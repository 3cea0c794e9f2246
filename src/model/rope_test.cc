// SPDX-License-Identifier: Apache-2.0
// Frequencies and scales as transformers 5.24 computes them (ROPE_INIT_FUNCTIONS, for a Qwen3Moe
// configuration with head_dim 16 and max_position_embeddings 4096).
#include "model/rope.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

ModelConfig config_with(const std::string& key, const std::string& rope) {
  return parse_model_config(
      cat(R"({"model_type":"qwen3_moe","hidden_size":64,"num_hidden_layers":1,"vocab_size":64,)",
          R"("num_attention_heads":4,"head_dim":16,"num_experts":4,"num_experts_per_tok":2,)",
          R"("moe_intermediate_size":16,"max_position_embeddings":4096,")", key, "\":", rope, "}"),
      "config.json");
}

struct Known {
  const char* name;
  const char* parameters;
  float scale;
  std::vector<float> frequencies;
};

const Known kKnown[] = {
    {"yarn as published",
     R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":1024,
       "rope_theta":1e4})",
     1.138629436111989F,
     {1.0F, 0.316227764F, 0.0812500045F, 0.0197642371F, 0.00437500002F, 0.000790569466F,
      0.000250000012F, 7.90569466e-05F}},
    {"yarn, the factor from the contexts",
     R"({"type":"yarn","original_max_position_embeddings":1024,"rope_theta":1e4})",
     1.138629436111989F,
     {1.0F, 0.316227764F, 0.0812500045F, 0.0197642371F, 0.00437500002F, 0.000790569466F,
      0.000250000012F, 7.90569466e-05F}},
    {"yarn with every key",
     R"({"rope_type":"yarn","factor":40.0,"original_max_position_embeddings":512,"rope_theta":5e5,
         "beta_fast":16.0,"beta_slow":2.0,"mscale":1.0,"mscale_all_dim":0.5,"truncate":false})",
     1.1557219901962608F,
     {1.0F, 0.192791954F, 0.00846413244F, 0.000182316624F, 3.53553369e-05F, 6.85620444e-06F,
      1.32957393e-06F, 2.57834614e-07F}},
    {"yarn with a scale of its own",
     R"({"rope_type":"yarn","factor":8.0,"original_max_position_embeddings":64,"rope_theta":1e6,
         "attention_factor":0.75})",
     0.75F,
     {1.0F, 0.100028217F, 0.00395284733F, 0.000702926656F, 0.000125000006F, 2.22284925e-05F,
      3.95284678e-06F, 7.02926684e-07F}},
    {"yarn, a context so short that the boundaries meet",
     R"({"rope_type":"yarn","factor":2.0,"original_max_position_embeddings":8,"rope_theta":1e4})",
     1.0693147180559945F,
     {1.0F, 0.158113882F, 0.0500000007F, 0.0158113893F, 0.00499999989F, 0.00158113893F,
      0.000500000024F, 0.000158113893F}},
    {"linear",
     R"({"rope_type":"linear","factor":2.5,"rope_theta":1e4})",
     1.0F,
     {0.400000006F, 0.1264911F, 0.0399999991F, 0.0126491114F, 0.00399999972F, 0.00126491114F,
      0.000400000019F, 0.000126491112F}},
    {"llama3",
     R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
         "original_max_position_embeddings":1024,"rope_theta":5e5})",
     1.0F,
     {1.0F, 0.193922758F, 0.0376060307F, 0.00131256948F, 0.000176776681F, 3.42810235e-05F,
      6.64786967e-06F, 1.28917316e-06F}},
};

TEST(Rope, AsTransformersHasIt) {
  for (const Known& known : kKnown) {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const Rope rope = make_rope(config_with(key, known.parameters));
      EXPECT_FLOAT_EQ(rope.scale, known.scale) << known.name;
      ASSERT_EQ(rope.inverse_frequencies.size(), 8U);
      for (int i = 0; i < 8; ++i) {
        EXPECT_NEAR(rope.inverse_frequencies[i], known.frequencies[i], 1e-6F * known.frequencies[i])
            << known.name << ", frequency " << i;
      }
    }
  }
}

TEST(Rope, YarnLengthensTheContext) {
  const auto length = [](const char* rope) {
    return config_with("rope_scaling", rope).max_position_embeddings;
  };
  const char* const four =
      R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":3072})";
  EXPECT_EQ(length(four), 12288);
  const char* const two =
      R"({"rope_type":"yarn","factor":2.0,"original_max_position_embeddings":1024})";
  EXPECT_EQ(length(two), 4096);
}

TEST(Rope, WithoutAScalingOnlyThetaCounts) {
  const Rope rope = make_rope(config_with("rope_theta", "10000.0"));
  EXPECT_EQ(rope.scale, 1.0F);
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[4], 0.01F);
  // An empty object says nothing.
  EXPECT_EQ(make_rope(config_with("rope_scaling", "{}")).inverse_frequencies,
            rope.inverse_frequencies);
}

TEST(Rope, OtherScalingsAreRefusedByName) {
  for (const char* type : {"dynamic", "longrope", "su", "mrope"}) {
    const ModelConfig config =
        config_with("rope_scaling", cat(R"({"factor":2.0,"type":")", type, "\"}"));
    try {
      make_rope(config);
      ADD_FAILURE() << type << " was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(std::string(error.what()).ends_with(cat("this model has ", type)));
    }
  }
}

}  // namespace
}  // namespace trimtab
