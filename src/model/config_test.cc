// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "model/checkpoint_testing.h"
#include "trimtab/checkpoint.h"
#include "trimtab/generate.h"

namespace trimtab {
namespace {

// The parts that matter of published config.json files.
const char* const kMixtral8x7B =
    R"({"architectures":["MixtralForCausalLM"],"bos_token_id":1,"eos_token_id":2,
  "hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":32768,
  "model_type":"mixtral","num_attention_heads":32,"num_experts_per_tok":2,"num_hidden_layers":32,
  "num_key_value_heads":8,"num_local_experts":8,"rms_norm_eps":1e-05,"rope_theta":1000000.0,
  "sliding_window":null,
  "tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":32000})";

const char* const kQwen15MoeA27B =
    R"({"bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu","hidden_size":2048,
  "intermediate_size":5632,"max_position_embeddings":8192,"max_window_layers":21,
  "model_type":"qwen2_moe",
  "num_attention_heads":16,"num_hidden_layers":24,"num_key_value_heads":16,"rms_norm_eps":1e-06,
  "rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":false,
  "use_sliding_window":false,
  "vocab_size":151936,"decoder_sparse_step":1,"moe_intermediate_size":1408,
  "shared_expert_intermediate_size":5632,
  "num_experts_per_tok":4,"num_experts":60,"norm_topk_prob":false})";

const char* const kQwen3_30B =
    R"({"attention_bias":false,"bos_token_id":151643,"decoder_sparse_step":1,"eos_token_id":151645,
  "head_dim":128,"hidden_act":"silu","hidden_size":2048,"intermediate_size":6144,
  "max_position_embeddings":40960,
  "max_window_layers":48,"mlp_only_layers":[],"model_type":"qwen3_moe","moe_intermediate_size":768,
  "norm_topk_prob":true,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,
  "num_hidden_layers":48,
  "num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000.0,
  "sliding_window":null,
  "tie_word_embeddings":false,"use_sliding_window":false,"vocab_size":151936})";

const char* const kOlmoe1B7B =
    R"({"attention_bias":false,"clip_qkv":null,"eos_token_id":50279,"hidden_act":"silu",
  "hidden_size":2048,"intermediate_size":1024,"max_position_embeddings":4096,"model_type":"olmoe",
  "norm_topk_prob":false,"num_attention_heads":16,"num_experts":64,"num_experts_per_tok":8,
  "num_hidden_layers":16,
  "num_key_value_heads":16,"rope_scaling":null,"rope_theta":10000.0,"tie_word_embeddings":false,
  "vocab_size":50304})";

const char* const kDeepseekV2 =
    R"({"bos_token_id":100000,"eos_token_id":100001,"first_k_dense_replace":1,"hidden_act":"silu",
  "hidden_size":5120,"intermediate_size":12288,"kv_lora_rank":512,"max_position_embeddings":163840,
  "model_type":"deepseek_v2","moe_intermediate_size":1536,"moe_layer_freq":1,"n_group":8,
  "n_routed_experts":160,
  "n_shared_experts":2,"norm_topk_prob":false,"num_attention_heads":128,"num_experts_per_tok":6,
  "num_hidden_layers":60,"num_key_value_heads":128,"q_lora_rank":1536,"qk_nope_head_dim":128,
  "qk_rope_head_dim":64,
  "rms_norm_eps":1e-06,"rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":0.707,
  "type":"yarn"},
  "rope_theta":10000,"routed_scaling_factor":16.0,"scoring_func":"softmax","topk_group":3,
  "topk_method":"group_limited_greedy","vocab_size":102400})";

const char* const kDeepseekV3 =
    R"({"bos_token_id":0,"eos_token_id":1,"first_k_dense_replace":3,"hidden_act":"silu",
  "hidden_size":7168,"intermediate_size":18432,"max_position_embeddings":163840,
  "model_type":"deepseek_v3",
  "moe_intermediate_size":2048,"moe_layer_freq":1,"n_group":8,"n_routed_experts":256,
  "n_shared_experts":1,
  "norm_topk_prob":true,"num_attention_heads":128,"num_experts_per_tok":8,"num_hidden_layers":61,
  "num_key_value_heads":128,"num_nextn_predict_layers":1,
  "quantization_config":{"activation_scheme":"dynamic",
  "fmt":"e4m3","quant_method":"fp8","weight_block_size":[128,128]},"rms_norm_eps":1e-06,
  "rope_theta":10000,
  "routed_scaling_factor":2.5,"scoring_func":"sigmoid","topk_group":4,"topk_method":"noaux_tc",
  "vocab_size":129280})";

const char* const kGlm45Air =
    R"({"attention_bias":true,"eos_token_id":[151329,151336,151338],"first_k_dense_replace":1,
  "head_dim":128,"hidden_act":"silu","hidden_size":4096,"intermediate_size":10944,
  "max_position_embeddings":131072,
  "model_type":"glm4_moe","moe_intermediate_size":1408,"n_group":1,"n_routed_experts":128,
  "n_shared_experts":1,
  "norm_topk_prob":true,"num_attention_heads":96,"num_experts_per_tok":8,"num_hidden_layers":46,
  "num_key_value_heads":8,"num_nextn_predict_layers":1,"partial_rotary_factor":0.5,
  "rms_norm_eps":1e-05,
  "rope_scaling":null,"rope_theta":1000000,"routed_scaling_factor":1.0,"topk_group":1,
  "use_qk_norm":false,
  "vocab_size":151552})";

const char* const kKimiK2 =
    R"({"bos_token_id":163584,"eos_token_id":163585,"first_k_dense_replace":1,"hidden_act":"silu",
  "hidden_size":7168,"intermediate_size":18432,"max_position_embeddings":131072,
  "model_type":"kimi_k2",
  "moe_intermediate_size":2048,"moe_layer_freq":1,"n_group":1,"n_routed_experts":384,
  "n_shared_experts":1,
  "norm_topk_prob":true,"num_attention_heads":64,"num_experts_per_tok":8,"num_hidden_layers":61,
  "num_key_value_heads":64,"rms_norm_eps":1e-06,"rope_theta":50000.0,"routed_scaling_factor":2.827,
  "scoring_func":"sigmoid","topk_group":1,"topk_method":"noaux_tc","vocab_size":163840})";

const char* const kGptOss20B =
    R"({"attention_bias":true,"eos_token_id":200002,"head_dim":64,"hidden_act":"silu",
  "hidden_size":2880,"intermediate_size":2880,"layer_types":["sliding_attention","full_attention"],
  "max_position_embeddings":131072,"model_type":"gpt_oss","num_attention_heads":64,
  "num_experts_per_tok":4,
  "num_hidden_layers":2,"num_key_value_heads":8,"num_local_experts":32,
  "quantization_config":{"modules_to_not_convert":["model.layers.*.self_attn"],
  "quant_method":"mxfp4"},
  "rms_norm_eps":1e-05,"rope_scaling":{"beta_fast":32.0,"factor":32.0,"rope_type":"yarn",
  "truncate":false},
  "rope_theta":150000,"sliding_window":128,"swiglu_limit":7.0,"tie_word_embeddings":false,
  "vocab_size":201088})";

ModelConfig parse(const std::string& text) {
  return parse_model_config(text, "config.json");
}

// The text with another value for a key, or with a key more.
std::string with(std::string text, const std::string& key, const std::string& value) {
  const size_t at = text.find(cat('"', key, "\":"));
  if (at == text.npos) return text.insert(1, cat('"', key, "\":", value, ","));
  const size_t first = at + key.size() + 3;
  size_t last = first;
  for (int depth = 0; depth > 0 || (text[last] != ',' && text[last] != '}'); ++last) {
    depth += text[last] == '[' || text[last] == '{';
    depth -= text[last] == ']' || text[last] == '}';
  }
  return text.replace(first, last - first, value);
}

int64_t moe_layers(const ModelConfig& config) {
  return std::count(config.is_moe_layer.begin(), config.is_moe_layer.end(), true);
}

TEST(Config, Mixtral) {
  const ModelConfig config = parse(kMixtral8x7B);
  EXPECT_EQ(config.family, Family::kMixtral);
  EXPECT_EQ(config.tensor_prefix, "model.");
  EXPECT_EQ(config.router.num_experts, 8);
  EXPECT_EQ(config.router.top_k, 2);
  EXPECT_TRUE(config.router.renormalize);
  EXPECT_EQ(config.router.scoring, Scoring::kSoftmax);
  EXPECT_EQ(config.moe_intermediate_size, 14336);
  EXPECT_EQ(config.shared_intermediate_size, 0);
  EXPECT_EQ(moe_layers(config), 32);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_FLOAT_EQ(config.rope_theta, 1e6F);
  EXPECT_EQ(config.rope_type, "default");
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(config.bos_token_id, 1);
  const ModelConfig sliding = parse(with(kMixtral8x7B, "sliding_window", "4096"));
  EXPECT_EQ(sliding.sliding_window, 4096);
  EXPECT_EQ(sliding.is_sliding_layer, std::vector<bool>(32, true));
}

TEST(Config, Qwen2Moe) {
  const ModelConfig config = parse(kQwen15MoeA27B);
  EXPECT_EQ(config.family, Family::kQwen2Moe);
  EXPECT_EQ(config.router.num_experts, 60);
  EXPECT_FALSE(config.router.renormalize);
  EXPECT_EQ(config.shared_intermediate_size, 5632);
  EXPECT_TRUE(config.shared_expert_gate);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_FALSE(config.attention_output_bias);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.qk_norm, ModelConfig::QkNorm::kNone);
  const ModelConfig sliding =
      parse(with(with(kQwen15MoeA27B, "use_sliding_window", "true"), "max_window_layers", "3"));
  EXPECT_EQ(sliding.sliding_window, 32768);
  EXPECT_TRUE(sliding.is_sliding_layer[0] && sliding.is_sliding_layer[2]);
  EXPECT_EQ(std::count(sliding.is_sliding_layer.begin(), sliding.is_sliding_layer.end(), true), 2);
}

TEST(Config, Qwen3Moe) {
  const ModelConfig config = parse(kQwen3_30B);
  EXPECT_EQ(config.family, Family::kQwen3Moe);
  EXPECT_TRUE(config.router.renormalize);
  EXPECT_EQ(config.moe_intermediate_size, 768);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.qk_norm, ModelConfig::QkNorm::kPerHead);
  EXPECT_EQ(moe_layers(config), 48);
}

TEST(Config, LayersWithExpertsOfQwen) {
  const ModelConfig config =
      parse(with(with(kQwen3_30B, "mlp_only_layers", "[5,1,99]"), "decoder_sparse_step", "2"));
  for (size_t layer = 0; layer < 48; ++layer) {
    EXPECT_EQ(config.is_moe_layer[layer], layer % 2 == 1 && layer != 1 && layer != 5) << layer;
  }
  EXPECT_EQ(config.intermediate_size, 6144);
}

TEST(Config, Olmoe) {
  const ModelConfig config = parse(kOlmoe1B7B);
  EXPECT_EQ(config.family, Family::kOlmoe);
  EXPECT_EQ(config.moe_intermediate_size, 1024);
  EXPECT_EQ(config.qk_norm, ModelConfig::QkNorm::kWhole);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-5F);
  EXPECT_EQ(config.clip_qkv, 0.0F);
  EXPECT_EQ(parse(with(kOlmoe1B7B, "clip_qkv", "8.0")).clip_qkv, 8.0F);
}

TEST(Config, DeepseekV2) {
  const ModelConfig config = parse(kDeepseekV2);
  EXPECT_EQ(config.family, Family::kDeepseekV2);
  EXPECT_EQ(config.router.scoring, Scoring::kSoftmax);
  EXPECT_EQ(config.router.num_groups, 8);
  EXPECT_EQ(config.router.top_groups, 3);
  EXPECT_EQ(config.router.group_score, GroupScore::kMax);
  EXPECT_FALSE(config.has_selection_bias);
  EXPECT_FALSE(config.router.renormalize);
  EXPECT_FLOAT_EQ(config.router.routed_scaling_factor, 16.0F);
  EXPECT_EQ(config.shared_intermediate_size, 3072);
  EXPECT_EQ(moe_layers(config), 59);
  EXPECT_FALSE(config.is_moe_layer[0]);
  EXPECT_EQ(config.rope_type, "yarn");
  EXPECT_EQ(parse(with(kDeepseekV2, "topk_method", "\"greedy\"")).router.num_groups, 1);
}

TEST(Config, DeepseekV3) {
  const ModelConfig config = parse(kDeepseekV3);
  EXPECT_EQ(config.family, Family::kDeepseekV3);
  EXPECT_EQ(config.router.scoring, Scoring::kSigmoid);
  EXPECT_EQ(config.router.num_groups, 8);
  EXPECT_EQ(config.router.top_groups, 4);
  EXPECT_EQ(config.router.group_score, GroupScore::kTop2Sum);
  EXPECT_TRUE(config.has_selection_bias);
  EXPECT_TRUE(config.router.renormalize);
  EXPECT_FLOAT_EQ(config.router.routed_scaling_factor, 2.5F);
  EXPECT_EQ(config.shared_intermediate_size, 2048);
  EXPECT_EQ(config.quantization.method, QuantizationConfig::Method::kFp8);
  EXPECT_EQ(config.is_moe_layer.size(), 61U);  // the prediction layer is none of them
  EXPECT_EQ(moe_layers(config), 58);
  EXPECT_EQ(config.head_dim, 0);
  const ModelConfig v4_scores = parse(with(kDeepseekV3, "scoring_func", "\"sqrtsoftplus\""));
  EXPECT_EQ(v4_scores.router.scoring, Scoring::kSqrtSoftplus);
  const ModelConfig every_second = parse(with(kDeepseekV3, "moe_layer_freq", "2"));
  EXPECT_TRUE(every_second.is_moe_layer[4] && !every_second.is_moe_layer[5] &&
              !every_second.is_moe_layer[2]);
}

TEST(Config, Glm4MoeImpliesSigmoid) {
  const ModelConfig config = parse(kGlm45Air);
  EXPECT_EQ(config.family, Family::kGlm4Moe);
  EXPECT_EQ(config.router.scoring, Scoring::kSigmoid);
  EXPECT_TRUE(config.has_selection_bias);
  EXPECT_EQ(config.router.num_groups, 1);
  EXPECT_EQ(config.qk_norm, ModelConfig::QkNorm::kNone);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_FALSE(config.attention_output_bias);
  EXPECT_FLOAT_EQ(config.partial_rotary_factor, 0.5F);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{151329, 151336, 151338}));
  EXPECT_EQ(moe_layers(config), 45);
}

TEST(Config, KimiK2AndItsWrapper) {
  for (const bool wrapped : {false, true}) {
    const ModelConfig config = parse(
        wrapped ? cat(R"({"model_type":"kimi_k25","vision_config":{},"text_config":)", kKimiK2, "}")
                : kKimiK2);
    EXPECT_EQ(config.family, Family::kKimiK2);
    EXPECT_EQ(config.model_type, "kimi_k2");
    EXPECT_EQ(config.tensor_prefix, wrapped ? "language_model.model." : "model.");
    EXPECT_EQ(config.router.num_experts, 384);
    EXPECT_FLOAT_EQ(config.router.routed_scaling_factor, 2.827F);
    EXPECT_EQ(config.router.num_groups, 1);
    EXPECT_TRUE(config.has_selection_bias);
  }
  const ModelConfig outer = parse(cat(
      R"({"model_type":"kimi_k25","quantization_config":{"quant_method":"fp8",
        "weight_block_size":[1,1]},)",
      R"("text_config":)", with(kKimiK2, "model_type", "null"), "}"));
  EXPECT_EQ(outer.family, Family::kKimiK2);
  EXPECT_EQ(outer.quantization.method, QuantizationConfig::Method::kFp8);
}

TEST(Config, AliasesOfKimi) {
  std::string text = kKimiK2;
  for (const auto& [published, alias] : {std::pair{"n_routed_experts", "num_experts"},
                                         {"num_experts_per_tok", "num_experts_per_token"},
                                         {"n_shared_experts", "num_shared_experts"},
                                         {"norm_topk_prob", "moe_renormalize"},
                                         {"scoring_func", "moe_router_activation_func"},
                                         {"n_group", "num_expert_group"}}) {
    text.replace(text.find(cat('"', published, '"')), std::string_view(published).size() + 2,
                 cat('"', alias, '"'));
  }
  text = with(with(with(with(text, "moe_renormalize", "false"), "num_expert_group", "4"),
                   "topk_group", "2"),
              "num_shared_experts", "3");
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.router.num_experts, 384);
  EXPECT_EQ(config.router.top_k, 8);
  EXPECT_EQ(config.router.num_groups, 4);
  EXPECT_FALSE(config.router.renormalize);
  EXPECT_EQ(config.shared_intermediate_size, 3 * 2048);
}

TEST(Config, GptOss) {
  const ModelConfig config = parse(kGptOss20B);
  EXPECT_EQ(config.family, Family::kGptOss);
  EXPECT_TRUE(config.router.softmax_after_top_k);
  EXPECT_FALSE(config.router.renormalize);
  EXPECT_TRUE(config.has_router_bias);
  EXPECT_TRUE(config.has_expert_bias);
  EXPECT_EQ(config.activation.kind, ActivationKind::kSwigluClamp);
  EXPECT_FLOAT_EQ(config.activation.alpha, 1.702F);
  EXPECT_FLOAT_EQ(config.activation.limit, 7.0F);
  EXPECT_EQ(config.quantization.method, QuantizationConfig::Method::kMxfp4);
  EXPECT_EQ(config.rope_type, "yarn");
  EXPECT_EQ(config.is_sliding_layer, (std::vector<bool>{true, false}));
  EXPECT_EQ(config.sliding_window, 128);
  EXPECT_TRUE(config.attention_output_bias);
}

// Mixtral, or another family by model_type, with the least that it needs.
const char* const kTwoLayers =
    R"({"model_type":"mixtral","hidden_size":32,"num_hidden_layers":2,"vocab_size":64,
  "num_attention_heads":4,"num_key_value_heads":4,"num_local_experts":8,"num_experts_per_tok":2,
  "intermediate_size":16,"moe_intermediate_size":16,"shared_expert_intermediate_size":16})";

TEST(Config, LayerTypes) {
  const auto layers = [](const std::string& family, const std::string& types, bool window) {
    std::string text = with(kTwoLayers, "model_type", cat('"', family, '"'));
    if (window) text = with(with(text, "sliding_window", "8"), "use_sliding_window", "true");
    return parse(with(text, "layer_types", types)).is_sliding_layer;
  };
  const std::string full = R"(["full_attention","full_attention"])";
  const std::string second = R"(["full_attention","sliding_attention"])";
  const std::string both = R"(["sliding_attention","sliding_attention"])";
  for (const char* family : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    EXPECT_EQ(layers(family, full, false), (std::vector<bool>{false, false})) << family;
  }
  EXPECT_EQ(layers("qwen2_moe", second, true), (std::vector<bool>{false, true}));
  EXPECT_EQ(layers("mixtral", both, true), (std::vector<bool>{true, true}));
  EXPECT_EQ(layers("qwen3_moe", both, true), (std::vector<bool>{true, true}));
  EXPECT_THROW(layers("mixtral", second, true), FormatError);
  EXPECT_THROW(layers("qwen3_moe", full, true), FormatError);
}

TEST(Config, AByteOrderMarkIsPassedOver) {
  EXPECT_EQ(parse(cat("\xEF\xBB\xBF", kTwoLayers)).hidden_size, 32);
  const TestFolder folder;
  folder.write("config.json", cat("\xEF\xBB\xBF", kTwoLayers));
  folder.write("generation_config.json", "\xEF\xBB\xBF{\"eos_token_id\":5}");
  EXPECT_EQ(read_model_config(folder.path()).eos_token_ids, std::vector<int32_t>{5});
}

TEST(Config, RopeOfTransformers5) {
  const std::string base = with(kQwen3_30B, "rope_theta", "null");
  EXPECT_FLOAT_EQ(parse(base).rope_theta, 10000.0F);
  const auto rope = [&](const char* parameters) {
    return parse(with(base, "rope_parameters", parameters));
  };
  const ModelConfig plain = rope(R"({"rope_type":"default","rope_theta":5000000.0})");
  EXPECT_FLOAT_EQ(plain.rope_theta, 5e6F);
  EXPECT_EQ(plain.rope_type, "default");
  const ModelConfig scaled =
      rope(R"({"rope_type":"yarn","factor":4.0,"partial_rotary_factor":0.25})");
  EXPECT_EQ(scaled.rope_type, "yarn");
  EXPECT_FLOAT_EQ(scaled.partial_rotary_factor, 0.25F);
  EXPECT_EQ(rope(R"({"full_attention":{"rope_type":"default"}})").rope_type, "per_layer");
  EXPECT_EQ(parse(with(kQwen3_30B, "rope_scaling", R"({"type":"linear","factor":2.0})")).rope_type,
            "linear");
}

TEST(Config, DefaultsOfTheClasses) {
  std::string text = kDeepseekV3;
  for (const char* key : {"first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor",
                          "scoring_func", "norm_topk_prob", "topk_method", "rms_norm_eps"}) {
    text = with(text, key, "null");
  }
  const ModelConfig config = parse(text);
  EXPECT_EQ(moe_layers(config), 58);
  EXPECT_EQ(config.router.num_groups, 8);
  EXPECT_EQ(config.router.top_groups, 4);
  EXPECT_FLOAT_EQ(config.router.routed_scaling_factor, 2.5F);
  EXPECT_EQ(config.router.scoring, Scoring::kSigmoid);
  EXPECT_TRUE(config.router.renormalize);
  EXPECT_EQ(parse(with(kKimiK2, "topk_group", "null")).router.top_groups, 1);
  EXPECT_FALSE(parse(with(kQwen3_30B, "norm_topk_prob", "null")).router.renormalize);
  EXPECT_EQ(parse(with(kMixtral8x7B, "num_key_value_heads", "null")).num_key_value_heads, 32);
}

TEST(Config, Refused) {
  struct Case {
    const char* base;
    const char* key;
    const char* value;
    const char* text;  // what the error must say
  };
  const Case cases[] = {
      {kMixtral8x7B, "model_type", "\"llama\"",
       "'model_type' is 'llama'; known are mixtral, qwen2_moe, qwen3_moe, olmoe, "
       "deepseek_v2, deepseek_v3, glm4_moe, kimi_k2, kimi_k25, gpt_oss"},
      {kMixtral8x7B, "model_type", "null", "'model_type' is missing"},
      {kMixtral8x7B, "model_type", "7", "'model_type' is 7, not a string"},
      {kMixtral8x7B, "hidden_size", "null", "'hidden_size' is missing"},
      {kMixtral8x7B, "hidden_size", "0", "'hidden_size' is 0, not an integer in [1, 2147483647]"},
      {kMixtral8x7B, "hidden_size", "4096.5", "'hidden_size' is 4096.5"},
      {kMixtral8x7B, "hidden_size", "\"4096\"", "'hidden_size' is \"4096\""},
      {kMixtral8x7B, "hidden_size", "1e99", "'hidden_size' is 1e+99"},
      {kMixtral8x7B, "vocab_size", "-1", "'vocab_size' is -1"},
      {kMixtral8x7B, "num_hidden_layers", "1000000000", "'num_hidden_layers' is 1000000000"},
      {kMixtral8x7B, "num_experts_per_tok", "9",
       "'num_experts_per_tok' is 9, not an integer in [1, 8]"},
      {kMixtral8x7B, "num_experts", "16", "'num_experts' is 16, but 'num_local_experts' is 8"},
      {kMixtral8x7B, "hidden_act", "\"relu\"", "'hidden_act' is 'relu'; known are silu"},
      {kMixtral8x7B, "rms_norm_eps", "-1.0", "'rms_norm_eps' is -1.0, not a positive number"},
      {kMixtral8x7B, "rope_theta", "1e300", "'rope_theta' is 1e+300"},
      {kMixtral8x7B, "num_attention_heads", "12",
       "'num_key_value_heads' is 8, which does not divide the 12"},
      {kMixtral8x7B, "num_attention_heads", "24", "does not divide hidden_size 4096"},
      {kMixtral8x7B, "head_dim", "127", "'head_dim' is 127"},
      {kMixtral8x7B, "sliding_window", "0", "'sliding_window' is 0"},
      {kMixtral8x7B, "swiglu_limit", "7.0", "'swiglu_limit' is not supported for mixtral"},
      {kQwen3_30B, "norm_topk_prob", "1", "'norm_topk_prob' is 1, not true or false"},
      {kQwen3_30B, "mlp_only_layers", "[\"a\"]", "'mlp_only_layers' holds \"a\""},
      {kQwen3_30B, "decoder_sparse_step", "0", "'decoder_sparse_step' is 0"},
      {kQwen15MoeA27B, "shared_expert_intermediate_size", "null",
       "'shared_expert_intermediate_size' is missing"},
      {kDeepseekV3, "n_group", "7", "'n_group' is 7: 256 experts don't divide"},
      {kDeepseekV3, "n_group", "256", "'n_group' is 256: groups of one"},
      {kDeepseekV3, "topk_group", "9", "'topk_group' is 9, not an integer in [1, 8]"},
      {kDeepseekV3, "num_experts_per_tok", "129",
       "'topk_group' is 4: that many groups of 32 hold fewer than the top 129"},
      {kDeepseekV3, "scoring_func", "\"tanh\"",
       "'scoring_func' is 'tanh'; known are softmax, sigmoid, sqrtsoftplus"},
      {kDeepseekV3, "topk_method", "\"best\"", "'topk_method' is 'best'; known are greedy"},
      {kDeepseekV3, "n_shared_experts", "2000000000", "'n_shared_experts' is 2000000000"},
      {kDeepseekV3, "num_hash_layers", "3", "'num_hash_layers' is not supported for deepseek_v3"},
      {kDeepseekV3, "zero_expert_num", "3", "'zero_expert_num' is not supported for deepseek_v3"},
      {kDeepseekV3, "quantization_config", "{}", "'quantization_config.quant_method' is missing"},
      {kDeepseekV3, "intermediate_size", "null", "'intermediate_size' is missing"},
      {kGptOss20B, "layer_types", "[\"full_attention\"]", "'layer_types' is not a list of 2"},
      {kGptOss20B, "layer_types", R"(["full_attention","full_attention","full_attention"])",
       "'layer_types' is not a list of 2 attention types, one a layer"},
      {kGptOss20B, "layer_types", R"(["full_attention","linear_attention"])",
       "'layer_types' holds \"linear_attention\"; known are full_attention, sliding_attention"},
      {kTwoLayers, "layer_types", R"(["linear_attention","linear_attention"])",
       "'layer_types' holds \"linear_attention\""},
      {kTwoLayers, "layer_types", R"(["full_attention"])", "'layer_types' is not a list of 2"},
      {kTwoLayers, "layer_types", R"(["sliding_attention","full_attention"])",
       "'layer_types' contradicts the other keys, by which no layer has sliding_attention"},
      {kTwoLayers, "rope_scaling", R"({"type":"linear"})", "'rope_scaling.factor' is missing"},
      {kTwoLayers, "rope_scaling", R"({"type":"linear","factor":0})", "'rope_scaling.factor' is 0"},
      {kTwoLayers, "rope_scaling", R"({"type":"yarn","factor":2.0})",
       "'rope_scaling.original_max_position_embeddings' is missing"},
      {kTwoLayers, "rope_parameters", R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":4.0,
       "high_freq_factor":4.0,"original_max_position_embeddings":64})",
       "'rope_parameters.high_freq_factor' is not above low_freq_factor"},
      {kTwoLayers, "rope_scaling", R"({"factor":4.0})",
       "'rope_scaling.factor' is there, but no rope_type that uses it"},
      {kGptOss20B, "text_config", "[]", "'text_config' is not an object"},
      {kGptOss20B, "text_config", "{}", "'text_config.hidden_size' is missing"},
      {kGptOss20B, "eos_token_id", "[1.5]", "'eos_token_id' holds 1.5"},
  };
  for (const Case& c : cases) {
    const std::string text = error_text<FormatError>([&] { parse(with(c.base, c.key, c.value)); });
    EXPECT_TRUE(text.starts_with("config.json: key ")) << text;
    EXPECT_NE(text.find(c.text), text.npos) << "not '" << c.text << "': " << text;
  }
}

TEST(Config, TextThatIsNoConfig) {
  const auto error = [](const std::string& text) {
    return error_text<FormatError>([&] { parse(text); });
  };
  EXPECT_EQ(error("[1]"), "config.json: is not a JSON object");
  EXPECT_NE(error("{\"a\":").find("config.json at byte 6: not valid JSON"), std::string::npos)
      << error("{\"a\":");
  EXPECT_NE(error("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(error(std::string("{}\0", 3)).find("at byte 2: a NUL"), std::string::npos);
  EXPECT_NE(error(R"({"a":1,"a":2})").find("key 'a' comes twice"), std::string::npos);
  EXPECT_NE(error(std::string(100'000, '[')).find("nested more than 64 deep"), std::string::npos);
}

TEST(Config, SamplingOfADirectory) {
  const TestFolder folder;
  EXPECT_THROW(read_sampling(folder.path()), InvalidArgument);
  folder.write("generation_config.json",
               R"({"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":null})");
  const Sampling sampling = read_sampling(folder.path());
  EXPECT_EQ(sampling.temperature, 0.6F);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.top_p, 0.95F);
  EXPECT_EQ(sampling.min_p, 0.0F);
  folder.write("generation_config.json", R"({"do_sample":true})");
  EXPECT_EQ(read_sampling(folder.path()).temperature, 1.0F);
  folder.write("generation_config.json", R"({"temperature":0.6,"top_k":20})");
  EXPECT_EQ(read_sampling(folder.path()).temperature, 0.0F);
  folder.write("generation_config.json", R"({"do_sample":true,"top_p":1.5})");
  EXPECT_NE(error_text<FormatError>([&] {
              read_sampling(folder.path());
            }).find("top_p must be above 0 and at most 1, not 1.5"),
            std::string::npos);
}

TEST(Config, FilesOfADirectory) {
  const TestFolder folder;
  EXPECT_NE(error_text<FormatError>([&] {
              read_model_config(folder.path());
            }).find("config.json: can't be opened"),
            std::string::npos);
  folder.write("config.json", kQwen3_30B);
  EXPECT_EQ(read_model_config(folder.path()).eos_token_ids, std::vector<int32_t>{151645});
  folder.write("generation_config.json",
               R"({"eos_token_id":[151645,151643],"bos_token_id":7,"do_sample":true})");
  const ModelConfig config = read_model_config(folder.path());
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{151645, 151643}));
  EXPECT_EQ(config.bos_token_id, 7);
  folder.write("generation_config.json", "{");
  EXPECT_NE(error_text<FormatError>([&] {
              read_model_config(folder.path());
            }).find("generation_config.json at byte"),
            std::string::npos);
}

}  // namespace
}  // namespace trimtab
