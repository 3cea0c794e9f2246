// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "base/cat.h"
#include "model/checkpoint_testing.h"
#include "trimtab/checkpoint.h"

namespace trimtab {
namespace {

// What is read out of a quantization_config.
QuantizationConfig quantization(const std::string& config,
                                const std::string& model_type = "mixtral") {
  const std::string sizes =
      R"("hidden_size":32,"num_hidden_layers":2,"vocab_size":64,"num_attention_heads":4,
        "num_key_value_heads":4,)"
      R"("num_local_experts":8,"num_experts_per_tok":2,"intermediate_size":16,)";
  return parse_model_config(cat(R"({"model_type":")", model_type, "\",", sizes,
                                R"("quantization_config":)", config, "}"),
                            "config.json")
      .quantization;
}

// quantization_config of Kimi K2 Thinking.
const char* const kKimiK2Int4 =
    R"({"config_groups":{"group_0":{"input_activations":null,"output_activations":null,
  "targets":["Linear"],"weights":{"actorder":null,"block_structure":null,"dynamic":false,
  "group_size":32,"num_bits":4,
  "observer":"minmax","observer_kwargs":{},"strategy":"group","symmetric":true,"type":"int"}}},
  "format":"pack-quantized","ignore":["lm_head","re:.*self_attn.*","re:.*shared_experts.*",
  "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],"kv_cache_scheme":null,
  "quant_method":"compressed-tensors",
  "quantization_status":"compressed"})";

TEST(ConfigQuantization, Fp8) {
  const QuantizationConfig blocks = quantization(
      R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic",
        "weight_block_size":[128,128]})");
  EXPECT_EQ(blocks.method, QuantizationConfig::Method::kFp8);
  ASSERT_EQ(blocks.groups.size(), 1U);
  EXPECT_EQ(blocks.groups[0].dtype, DType::kF8E4M3);
  EXPECT_EQ(blocks.groups[0].block_rows, 128);
  EXPECT_EQ(blocks.groups[0].block_cols, 128);
  EXPECT_FALSE(blocks.groups[0].has_zero_points);
  EXPECT_TRUE(blocks.ignore.empty());
  const std::string fp8 =
      R"({"quant_method":"fp8","weight_block_size":[64,32],"scale_fmt":"ue8m0",)";
  const auto ignoring = [&](const std::string& key) {
    return quantization(cat(fp8, '"', key, "\":[\"lm_head\"]}"));
  };
  EXPECT_EQ(ignoring("modules_to_not_convert").ignore, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(ignoring("ignored_layers").ignore, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(ignoring("ignored_layers").groups[0].block_rows, 64);
  EXPECT_EQ(ignoring("ignored_layers").groups[0].block_cols, 32);
  EXPECT_EQ(quantization("null").method, QuantizationConfig::Method::kNone);
}

// The groups of a configuration of compressed-tensors with these weights.
std::vector<QuantizationConfig::Group> groups_of(const std::string& format,
                                                 const std::string& weights) {
  return quantization(cat(R"({"quant_method":"compressed-tensors","format":")", format,
                          R"(","config_groups":{"a":{"targets":["Linear"],"weights":)", weights,
                          "}}}"))
      .groups;
}

TEST(ConfigQuantization, CompressedTensors) {
  const struct {
    const char *format, *weights;
    DType dtype;
    int64_t rows, cols;
    bool zeros;
  } cases[] = {
      {"int-quantized", R"({"num_bits":8,"strategy":"channel"})", DType::kI8, 1, 0, false},
      {"int-quantized", R"({"num_bits":8,"group_size":-1,"symmetric":false})", DType::kI8, 1, 0,
       true},
      {"naive-quantized", R"({"type":"int","actorder":"static"})", DType::kI8, 0, 0, false},
      {"float-quantized", R"({"type":"float","num_bits":8,"strategy":"tensor"})", DType::kF8E4M3, 0,
       0, false},
      {"naive-quantized", R"({"type":"float","strategy":"block","block_structure":[128,64]})",
       DType::kF8E4M3, 128, 64, false},
      {"pack-quantized", R"({"num_bits":4,"group_size":128,"symmetric":true})", DType::kU4, 1, 128,
       false},
      {"pack-quantized", R"({"num_bits":4,"strategy":"channel","symmetric":false})", DType::kU4, 1,
       0, true},
      {"pack-quantized", R"({"num_bits":8,"group_size":32})", DType::kU8, 1, 32, false},
      {"pack-quantized", R"({"strategy":"channel","symmetric":false})", DType::kU8, 1, 0, true},
  };
  for (const auto& c : cases) {
    const auto groups = groups_of(c.format, c.weights);
    ASSERT_EQ(groups.size(), 1U) << c.weights;
    EXPECT_EQ(groups[0].dtype, c.dtype) << c.weights;
    EXPECT_EQ(groups[0].block_rows, c.rows) << c.weights;
    EXPECT_EQ(groups[0].block_cols, c.cols) << c.weights;
    EXPECT_EQ(groups[0].has_zero_points, c.zeros) << c.weights;
  }
  const QuantizationConfig kimi = quantization(kKimiK2Int4);
  EXPECT_EQ(kimi.groups.at(0).dtype, DType::kU4);
  EXPECT_EQ(kimi.groups.at(0).block_cols, 32);
  EXPECT_EQ(kimi.ignore.size(), 4U);

  // Formats of their own; names before classes.
  const QuantizationConfig mixed = quantization(R"({"quant_method":"compressed-tensors",
          "format":"mixed-precision","config_groups":{
            "a":{"targets":["Linear"],"format":"float-quantized","weights":{"type":"float"}},
            "b":{"targets":["re:.*experts"],"format":"pack-quantized","weights":{"num_bits":4,
            "group_size":32}}}})");
  ASSERT_EQ(mixed.groups.size(), 2U);
  EXPECT_EQ(mixed.groups[0].dtype, DType::kU4);
  EXPECT_EQ(mixed.groups[1].dtype, DType::kF8E4M3);
}

TEST(ConfigQuantization, Fp8WithoutBlocks) {
  for (const char* more : {"", R"(,"weight_block_size":null)"}) {
    const QuantizationConfig config = quantization(cat(R"({"quant_method":"fp8")", more, "}"));
    EXPECT_TRUE(config.groups.at(0).scale_of_tensor_or_rows);
    EXPECT_EQ(config.groups[0].rows, QuantizationConfig::Rows::kDynamic);
  }
}

TEST(ConfigQuantization, FrozenWeightsAreRead) {
  const std::string compressed = kKimiK2Int4;
  std::string frozen = compressed;
  frozen.replace(frozen.find("\"compressed\""), 12, "\"frozen\"");
  EXPECT_EQ(quantization(frozen).groups.at(0).block_cols,
            quantization(compressed).groups.at(0).block_cols);
}

// Which formats keep these weights without a word, and what is said otherwise.
TEST(ConfigQuantization, RoundingOfRows) {
  using Rows = QuantizationConfig::Rows;
  const auto compressed = [](const std::string& rows) {
    return quantization(cat(R"({"quant_method":"compressed-tensors","format":"int-quantized",)",
                            R"("config_groups":{"a":{"targets":["Linear"],"weights":{},)",
                            R"("input_activations":)", rows, "}}}"))
        .groups[0];
  };
  const auto fp8 = [](const std::string& scheme) {
    return quantization(cat(R"({"quant_method":"fp8","activation_scheme":")", scheme, "\"}"))
        .groups[0];
  };
  const auto weights_only = compressed("null");
  const auto int8 = compressed(R"({"num_bits":8,"type":"int","dynamic":true,"strategy":"token"})");
  const auto scaled = compressed(R"({"num_bits":8,"type":"int","dynamic":false})");
  const auto local = compressed(R"({"num_bits":8,"type":"float","dynamic":"local"})");
  EXPECT_EQ(weights_only.rows, Rows::kPlain);
  EXPECT_EQ(int8.rows, Rows::kDynamic);
  EXPECT_EQ(scaled.rows, Rows::kStatic);
  EXPECT_EQ(local.rows, Rows::kStatic);
  EXPECT_EQ(fp8("dynamic").rows, Rows::kDynamic);
  EXPECT_EQ(fp8("static").rows, Rows::kStatic);

  const auto refusal = [](const QuantizationConfig::Group& group, WeightFormat format) {
    try {
      check_rounding_of_rows(group, format);
      return std::string();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
  };
  for (const WeightFormat plain : {Scheme::kF32, Scheme::kBF16, Scheme::kFP8, Scheme::kMXFP4}) {
    EXPECT_EQ(refusal(weights_only, plain), "");
    EXPECT_EQ(refusal(int8, plain), "");
    EXPECT_EQ(refusal(fp8("dynamic"), plain), "");
    EXPECT_NE(refusal(scaled, plain), "");
    EXPECT_EQ(refusal(fp8("static"), plain) == "", plain == WeightFormat(Scheme::kFP8));
  }
  EXPECT_TRUE(scaled.has_input_scale && fp8("static").has_input_scale);
  for (const char* other : {R"({"dynamic":false,"strategy":"token"})", R"({"dynamic":"local"})",
                            R"({"dynamic":false,"symmetric":false})"}) {
    EXPECT_FALSE(compressed(other).has_input_scale) << other;
    EXPECT_NE(refusal(compressed(other), Scheme::kW8A8), "") << other;
  }
  EXPECT_EQ(refusal(scaled, Scheme::kW8A8), "");
  EXPECT_EQ(refusal(scaled, Scheme::kW4A8), "");
  EXPECT_EQ(refusal(int8, Scheme::kW8A8), "");
  EXPECT_EQ(refusal(int8, Scheme::kW4A8), "");
  EXPECT_EQ(refusal(fp8("dynamic"), Scheme::kMXFP8), "");
  EXPECT_EQ(refusal(weights_only, Scheme::kW8A8),
            "key 'quantization_config.config_groups.a.input_activations' is null: only the weights "
            "are quantised; w8a8 also rounds rows to I8. Name the experts' format to accept that "
            "(--experts w8a8), or unpack their weights (--experts bf16 or f32)");
  EXPECT_NE(refusal(weights_only, Scheme::kMXFP8).find("rounds rows to F8_E4M3"),
            std::string::npos);
  EXPECT_NE(refusal(int8, Scheme::kMXFP8).find("has rows of I8; mxfp8 rounds them to F8_E4M3"),
            std::string::npos);
  EXPECT_NE(refusal(scaled, Scheme::kMXFP8)
                .find("input_activations.dynamic' is false: rows are rounded by one scale per "
                      "tensor of the checkpoint; mxfp8 rounds them by scales of their own"),
            std::string::npos)
      << refusal(scaled, Scheme::kMXFP8);
  EXPECT_NE(refusal(fp8("static"), Scheme::kMXFP4)
                .find("activation_scheme' is static: rows are rounded by one scale per tensor of "
                      "the checkpoint; mxfp4 does not round them to 8 bits"),
            std::string::npos)
      << refusal(fp8("static"), Scheme::kMXFP4);
}

TEST(ConfigQuantization, IsRefused) {
  const auto compressed = [](const std::string& more) {
    return cat(R"({"quant_method":"compressed-tensors",)", more, "}");
  };
  const auto group = [&](const std::string& format, const std::string& weights) {
    return compressed(cat(R"("format":")", format,
                          R"(","config_groups":{"a":{"targets":["Linear"],"weights":)", weights,
                          "}}"));
  };
  const auto rows = [&](const std::string& text) {
    return compressed(cat(R"("format":"int-quantized","config_groups":{"a":{"targets":["Linear"],)",
                          R"("weights":{},"input_activations":)", text, "}}"));
  };
  const std::string usual =
      R"("format":"int-quantized","config_groups":{"a":{"targets":["Linear"],"weights":{}}})";
  const std::pair<std::string, std::string> cases[] = {
      {"{}", "quant_method' is missing"},
      {R"({"quant_method":"bitsandbytes"})",
       "'bitsandbytes'; supported are fp8, compressed-tensors, mxfp4, gptq, awq"},
      {R"({"quant_method":"gptq","bits":4})", "group_size' is missing"},
      {R"({"quant_method":"gptq","bits":3,"group_size":128})", "bits' is 3; supported are 4 and 8"},
      {R"({"quant_method":"gptq","bits":4,"group_size":0})", "group_size' is 0; -1 stands for"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"marlin"})",
       "checkpoint_format' is 'marlin'; supported are gptq and gptq_v2"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"is_marlin_format":true})",
       "is_marlin_format' is true, which is not supported"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"pack_dtype":"int16"})",
       "pack_dtype' is 'int16'; supported is int32"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"+:.*mlp":{"bits":8}}})",
       "dynamic' has the rule '+:.*mlp': other settings for single modules"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"rotation":"hadamard"})",
       "rotation' is not known"},
      {R"({"quant_method":"awq","bits":8,"group_size":128})", "bits' is not 4, the only size"},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"})",
       "version' is 'gemv'; supported is gemm"},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"zero_point":false})",
       "zero_point' is false, which is not supported"},
      {R"({"quant_method":"mxfp4"})", "quant_method' is 'mxfp4', which only gpt_oss has"},
      {R"({"quant_method":"fp8","weight_block_size":[128]})",
       "weight_block_size' has 1 numbers in place of 2"},
      {R"({"quant_method":"fp8","activation_scheme":"none"})",
       "activation_scheme' is 'none'; known are dynamic and static"},
      {R"({"quant_method":"fp8","weight_block_size":[128,0]})", "weight_block_size' holds 0"},
      {R"({"quant_method":"fp8","weight_block_size":[128,128],"fmt":"e5m2"})",
       "fmt' is 'e5m2'; supported is e4m3"},
      {R"({"quant_method":"fp8","weight_block_size":[128,128],"expert_dtype":"fp4"})",
       "expert_dtype' is 'fp4', which only deepseek_v4 has"},
      {R"({"quant_method":"fp8","weight_block_size":[1,1],"scale":1})",
       "quantization_config.scale' is not known"},
      {R"x({"quant_method":"fp8","weight_block_size":[1,1],"ignored_layers":["(a"]})x",
       "modules_to_not_convert' or targets: the pattern '(a' has an unmatched '(' at 2"},
      {R"({"quant_method":"fp8","weight_block_size":[1,1],"ignored_layers":"a"})",
       "ignored_layers' is not a list"},
      {R"({"quant_method":"fp8","weight_block_size":[1,1],"ignored_layers":[7]})",
       "holds 7, not a string"},
      {compressed(R"("format":"int-quantized")"), "config_groups' is missing"},
      {compressed(R"("config_groups":{"W8A8":["Linear"]})"),
       "config_groups.W8A8' is not an object"},
      {compressed(R"("config_groups":{"a":{"weights":{}}})"),
       "config_groups.a.targets' is missing"},
      {compressed(R"("config_groups":{"a":{"targets":["Linear"]}})"),
       "config_groups.a.weights' is missing"},
      {compressed(usual + R"(,"quantization_status":"calibration")"),
       "quantization_status' is 'calibration'; supported are compressed, frozen"},
      {rows(R"({"num_bits":8,"type":"complex"})"), "type' is 'complex'; known are int, float"},
      {rows(R"({"bits":8})"), "input_activations.bits' is not known"},
      {rows(R"(null,"output_activations":{"num_bits":8})"), "output_activations' is not supported"},
      {compressed(usual + R"(,"sparsity_config":{"format":"sparse-24-bitmask"})"),
       "sparsity_config' is not supported"},
      {compressed(usual + R"(,"transform_config":{"config_groups":{}})"),
       "transform_config' is not supported"},
      {compressed(usual + R"x(,"ignore":["re:^(?!.*experts)"])x"),
       "ignore' or targets: the pattern"},
      {compressed(usual + R"(,"more":1)"), "quantization_config.more' is not known"},
      {group("nvfp4-pack-quantized", "{}"), "format' is 'nvfp4-pack-quantized': NVFP4 (weight_"},
      {R"({"quant_method":"modelopt","quant_algo":"NVFP4"})",
       "quant_algo' is 'NVFP4': NVFP4 (weight_scale_2 or weight_global_scale, input_scale) is not"},
      {group("marlin-24", "{}"), "format' is 'marlin-24'; supported are"},
      {group("pack-quantized", R"({"num_bits":3})"),
       "weights.num_bits' is 3 of type int, which is not supported as pack"},
      {group("pack-quantized", R"({"num_bits":8,"symmetric":false})"),
       "symmetric' is false, which is not"},
      {group("int-quantized", R"({"type":"float"})"),
       "num_bits' is 8 of type float, which is not supported as int"},
      {group("int-quantized", R"({"strategy":"token"})"),
       "strategy' is 'token'; supported are tensor, channel"},
      {group("int-quantized", R"({"strategy":"group"})"), "weights.group_size' is missing"},
      {group("int-quantized", R"({"strategy":"block"})"),
       "block_structure' has 0 numbers in place of 2"},
      {group("float-quantized", R"({"type":"float","symmetric":false})"),
       "symmetric' is false, which is not"},
      {group("pack-quantized", R"({"num_bits":4,"symmetric":false})"),
       "symmetric' is false, which is not"},
      {group("pack-quantized", R"({"num_bits":4,"actorder":"group"})"),
       "actorder' is \"group\"; supported is \"weight\""},
      {group("int-quantized", R"({"bits":8})"), "weights.bits' is not known"},
  };
  for (const auto& [config, words] : cases) {
    const std::string text = error_text<FormatError>([&] { quantization(config); });
    EXPECT_TRUE(text.starts_with("config.json: key 'quantization_config.")) << text;
    EXPECT_NE(text.find(words), text.npos) << "not '" << words << "': " << text;
  }
}

TEST(ConfigQuantization, GptqAndAwq) {
  const std::string gptq = R"({"quant_method":"gptq","desc_act":false,"sym":true,"meta":{},)"
                           R"("dynamic":{"-:.*mlp\\.gate$":{}},)";
  const auto group = [&](const std::string& more) {
    return quantization(gptq + more).groups.at(0);
  };
  const auto four = group(R"("bits":4,"group_size":128})");
  EXPECT_EQ(four.dtype, DType::kU4);
  EXPECT_EQ(four.block_cols, 128);
  EXPECT_EQ(four.zero_offset, 1);
  EXPECT_TRUE(are_weights_only(four));
  EXPECT_THROW(check_rounding_of_rows(four, Scheme::kW4A8), InvalidArgument);
  EXPECT_NO_THROW(check_rounding_of_rows(four, Scheme::kW4A16));
  const auto eight = group(R"("bits":8,"group_size":-1,"checkpoint_format":"gptq_v2"})");
  EXPECT_EQ(eight.dtype, DType::kU8);
  EXPECT_EQ(eight.block_cols, QuantizationConfig::kWhole);
  EXPECT_EQ(eight.zero_offset, 0);
  const auto awq =
      quantization(R"({"quant_method":"awq","bits":4,"group_size":64,"version":"gemm",)"
                   R"("zero_point":true,"modules_to_not_convert":["gate"]})");
  EXPECT_EQ(awq.method, QuantizationConfig::Method::kAwq);
  EXPECT_EQ(awq.groups.at(0).dtype, DType::kU4);
  EXPECT_EQ(awq.groups[0].block_cols, 64);
  EXPECT_EQ(awq.groups[0].zero_offset, 0);
  EXPECT_EQ(awq.ignore, std::vector<std::string>{"gate"});
}

TEST(ConfigQuantization, Mxfp4) {
  const QuantizationConfig config = quantization(
      R"({"modules_to_not_convert":["model.layers.*.self_attn","lm_head"],"quant_method":"mxfp4"})",
      "gpt_oss");
  EXPECT_EQ(config.method, QuantizationConfig::Method::kMxfp4);
  ASSERT_EQ(config.groups.size(), 1U);
  EXPECT_EQ(config.groups[0].dtype, DType::kF4);
  EXPECT_EQ(config.groups[0].block_rows, 1);
  EXPECT_EQ(config.groups[0].block_cols, 32);
  EXPECT_EQ(config.ignore.size(), 2U);
  EXPECT_EQ(name(config.method), "mxfp4");
}

}  // namespace
}  // namespace trimtab
