// SPDX-License-Identifier: Apache-2.0
// Hash layers, 4-bit experts and zero experts of checkpoints that the test writes in their
// published forms. What routers must pick is computed here from the definitions.
#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <map>
#include <numeric>
#include <random>

#include "base/cat.h"
#include "model/checkpoint_testing.h"

namespace trimtab {
namespace {

constexpr int kHidden = 64, kWidth = 32, kExperts = 6, kTopK = 2, kVocabulary = 20;

// Tensors by name, in memory of their own.
class Tensors {
 public:
  template <class T>
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    const auto* p = reinterpret_cast<const std::byte*>(values.data());
    owned_.emplace_back(p, p + values.size() * sizeof(T));
    tensors_[name] = {dtype, std::move(shape), owned_.back()};
  }
  std::vector<float> add_floats(const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    add(name, DType::kF32, std::move(shape), values);
    return values;
  }
  template <class T>
  std::vector<T> add_codes(const std::string& name, DType dtype, std::vector<int64_t> shape,
                           int64_t count, int first, int last) {
    std::uniform_int_distribution<int> code(first, last);
    std::vector<T> values(count);
    for (T& value : values) value = static_cast<T>(code(random_));
    add(name, dtype, std::move(shape), values);
    return values;
  }
  void erase(const std::string& name) { tensors_.erase(name); }
  SafeTensors open(const TestFolder& folder) const {
    folder.write("model.safetensors", safetensors_image(tensors_));
    return SafeTensors::open(folder.path());
  }

 private:
  std::mt19937 random_{3};
  std::map<std::string, TensorView> tensors_;
  std::list<std::vector<std::byte>> owned_;
};

std::string config_text(const std::string& family, const std::string& more) {
  return cat(R"({"model_type":")", family, R"(","hidden_size":)", kHidden, R"(,"vocab_size":)",
             kVocabulary, R"(,"num_attention_heads":4,"n_routed_experts":)", kExperts, ",", more,
             "}");
}

ModelConfig deepseek_v4(const std::string& more = "") {
  return parse_model_config(
      config_text("deepseek_v4",
                  cat(R"("num_hidden_layers":2,"num_hash_layers":1,"num_experts_per_tok":)", kTopK,
                      R"(,"moe_intermediate_size":)", kWidth,
                      R"(,"topk_method":"noaux_tc","norm_topk_prob":true,"swiglu_limit":7.0,)",
                      R"("routed_scaling_factor":1.5,"n_shared_experts":1)", more)),
      "config.json");
}

void add_experts(Tensors& tensors, const std::string& prefix, bool w123) {
  const auto mlp = [&](const std::string& module) {
    tensors.add_floats(cat(module, w123 ? "w1" : "gate_proj", ".weight"), {kWidth, kHidden});
    tensors.add_floats(cat(module, w123 ? "w3" : "up_proj", ".weight"), {kWidth, kHidden});
    tensors.add_floats(cat(module, w123 ? "w2" : "down_proj", ".weight"), {kHidden, kWidth});
  };
  for (int e = 0; e < kExperts; ++e) mlp(cat(prefix, "experts.", e, "."));
  mlp(prefix + "shared_experts.");
}

// A row of logits that stand for nothing but themselves.
std::vector<float> some_logits(int count) {
  std::vector<float> logits;
  for (int i = 0; i < count; ++i) logits.push_back(std::sin(1.7F * static_cast<float>(i * i)));
  return logits;
}

struct Picks {
  std::vector<int32_t> ids;
  std::vector<float> weights, identity;
};
Picks route(const Router& router, const std::vector<float>& logits, int32_t token) {
  Picks picks = {std::vector<int32_t>(kTopK), std::vector<float>(kTopK), {0.0F}};
  RouteInputs inputs;
  inputs.token_ids = std::span(&token, 1);
  router.route(ConstRows(logits.data(), 1, std::ssize(logits)), inputs,
               {picks.ids, picks.weights, picks.identity});
  return picks;
}

double sqrt_softplus(float x) {
  return std::sqrt(std::log1p(std::exp(static_cast<double>(x))));
}

// R9: the first layers of DeepSeek-V4 choose experts by token id, with weights of the gate.
TEST(DeepseekV4, HashLayersComeFromTheCheckpoint) {
  const ModelConfig config = deepseek_v4();
  EXPECT_EQ(config.is_hash_layer, (std::vector<bool>{true, false}));
  EXPECT_EQ(config.router.scoring, Scoring::kSqrtSoftplus);
  EXPECT_EQ(config.activation.kind, ActivationKind::kSwigluClamp);
  EXPECT_EQ(config.activation.limit, 7.0F);
  EXPECT_EQ(config.activation.alpha, 1.0F);
  EXPECT_EQ(config.activation.beta, 0.0F);
  for (const bool published : {true, false}) {
    Tensors tensors;
    const auto prefix = [&](int layer) {
      return published ? cat("layers.", layer, ".ffn.") : cat("model.layers.", layer, ".mlp.");
    };
    for (int layer = 0; layer < 2; ++layer) {
      tensors.add_floats(prefix(layer) + "gate.weight", {kExperts, kHidden});
      add_experts(tensors, prefix(layer), published);
    }
    const std::string table_name = prefix(0) + "gate.tid2eid";
    std::vector<int64_t> table;
    for (int i = 0; i < kVocabulary * kTopK; ++i) table.push_back((5 * i + i / 3) % kExperts);
    const std::vector<int32_t> narrow(table.begin(), table.end());
    if (published) {
      tensors.add(table_name, DType::kI64, {kVocabulary, kTopK}, table);
    } else {
      tensors.add(table_name, DType::kI32, {kVocabulary, kTopK}, narrow);
    }
    const std::vector<float> bias = tensors.add_floats(
        prefix(1) + (published ? "gate.bias" : "gate.e_score_correction_bias"), {kExperts});

    const TestFolder folder;
    const SafeTensors file = tensors.open(folder);
    const MoeTensors hashed = find_moe_tensors(file, config, 0),
                     scored = find_moe_tensors(file, config, 1);
    EXPECT_EQ(hashed.hash_table, narrow);
    EXPECT_TRUE(hashed.selection_bias.empty() && scored.hash_table.empty());
    EXPECT_EQ(scored.selection_bias, bias);
    ASSERT_TRUE(hashed.shared.has_value());
    EXPECT_EQ(hashed.shared->gate.rows, kWidth);

    const std::vector<float> logits = some_logits(kExperts);
    const Router by_hash(router_config(config, hashed));
    for (int32_t token = 0; token < kVocabulary; ++token) {
      const Picks picks = route(by_hash, logits, token);
      double sum = 1e-20;
      for (int k = 0; k < kTopK; ++k) {
        EXPECT_EQ(picks.ids[k], table[token * kTopK + k]) << token;
        sum += sqrt_softplus(logits[picks.ids[k]]);
      }
      for (int k = 0; k < kTopK; ++k) {
        EXPECT_NEAR(picks.weights[k], 1.5 * sqrt_softplus(logits[picks.ids[k]]) / sum, 1e-6);
      }
    }
    const Router by_score(router_config(config, scored));
    const Picks picks = route(by_score, logits, 0);
    std::vector<int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater(),
                      [&](int32_t e) { return sqrt_softplus(logits[e]) + double{bias[e]}; });
    EXPECT_EQ(picks.ids, std::vector<int32_t>(order.begin(), order.begin() + kTopK));

    // Tables that can't be.
    table[2 * kTopK + 1] = kExperts;
    tensors.add(table_name, DType::kI64, {kVocabulary, kTopK}, table);
    EXPECT_NE(error_text<FormatError>([&] {
                find_moe_tensors(tensors.open(folder), config, 0);
              }).find("tid2eid' names expert 6 of 6 for token 2"),
              std::string::npos);
    table.resize((kVocabulary - 1) * kTopK);
    tensors.add(table_name, DType::kI64, {kVocabulary - 1, kTopK}, table);
    EXPECT_NE(error_text<FormatError>([&] {
                find_moe_tensors(tensors.open(folder), config, 0);
              }).find("tid2eid' has shape ["),
              std::string::npos);
    tensors.erase(table_name);
    EXPECT_NE(error_text<FormatError>([&] {
                find_moe_tensors(tensors.open(folder), config, 0);
              }).find("tid2eid' is missing"),
              std::string::npos);
  }
}

TEST(DeepseekV4, WhichLayersAreHashed) {
  const auto hashed = [](const std::string& more) {
    return parse_model_config(config_text("deepseek_v4", cat(R"("num_hidden_layers":4,)",
                                                             R"("num_experts_per_tok":2,)",
                                                             R"("moe_intermediate_size":8)", more)),
                              "config.json")
        .is_hash_layer;
  };
  EXPECT_EQ(hashed(""), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(hashed(R"(,"num_hash_layers":0)"), std::vector<bool>(4));
  EXPECT_EQ(hashed(R"(,"mlp_layer_types":["moe","hash_moe","moe","moe"])"),
            (std::vector<bool>{false, true, false, false}));
  EXPECT_THROW(hashed(R"(,"mlp_layer_types":["moe"])"), FormatError);
  EXPECT_THROW(hashed(R"(,"mlp_layer_types":["moe","dense","moe","moe"])"), FormatError);
  EXPECT_THROW(hashed(R"(,"n_group":2,"topk_group":1)"), FormatError);
}

// Experts in 4 bits with a power of two per 32 inputs, shared experts in fp8 blocks.
TEST(DeepseekV4, Fp4ExpertsAreKeptAsTheyAre) {
  const ModelConfig config =
      deepseek_v4(R"(,"expert_dtype":"fp4","quantization_config":{"quant_method":"fp8",)"
                  R"("fmt":"e4m3","scale_fmt":"ue8m0","weight_block_size":[128,128],)"
                  R"("activation_scheme":"dynamic"})");
  Tensors tensors;
  const std::string prefix = "layers.1.ffn.";
  tensors.add_floats(prefix + "gate.weight", {kExperts, kHidden});
  tensors.add_floats(prefix + "gate.bias", {kExperts});
  std::vector<int8_t> codes;
  std::vector<uint8_t> scales;
  const auto matrix = [&](const std::string& module, int64_t rows, int64_t cols, bool fp4) {
    if (fp4) {
      codes = tensors.add_codes<int8_t>(module + ".weight", DType::kI8, {rows, cols / 2},
                                        rows * cols / 2, -128, 127);
      scales = tensors.add_codes<uint8_t>(module + ".scale", DType::kF8E8M0, {rows, cols / 32},
                                          rows * cols / 32, 120, 134);
    } else {
      tensors.add_codes<uint8_t>(module + ".weight", DType::kF8E4M3, {rows, cols}, rows * cols, 0,
                                 0x7e);
      tensors.add_codes<uint8_t>(module + ".scale", DType::kF8E8M0, {1, 1}, 1, 127, 127);
    }
  };
  const auto mlp = [&](const std::string& module, bool fp4) {
    matrix(module + "w1", kWidth, kHidden, fp4);
    matrix(module + "w2", kHidden, kWidth, fp4);
    matrix(module + "w3", kWidth, kHidden, fp4);
  };
  mlp(prefix + "shared_experts.", false);
  for (int e = 0; e < kExperts; ++e) mlp(cat(prefix, "experts.", e, "."), true);

  const TestFolder folder;
  const SafeTensors file = tensors.open(folder);
  const MoeTensors moe = find_moe_tensors(file, config, 1);
  const MatrixSource& up = moe.experts[kExperts - 1].up;  // the last codes
  constexpr float kValues[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (int i = 0; i < kWidth; ++i) {
    for (int j = 0; j < kHidden; ++j) {
      const auto pair = static_cast<uint8_t>(codes[(i * kHidden + j) / 2]);
      const int code = j % 2 == 0 ? pair & 15 : pair >> 4;
      const float magnitude = kValues[code & 7];
      const float want =
          std::ldexp(code & 8 ? -magnitude : magnitude, scales[i * (kHidden / 32) + j / 32] - 127);
      ASSERT_EQ(up.at(i, j), want) << i << " " << j;
    }
  }
  for (const MlpSource& expert : moe.experts)
    EXPECT_EQ(native_format(expert), WeightFormat(Scheme::kMXFP4));
  EXPECT_EQ(native_format(*moe.shared), WeightFormat(Scheme::kFP8));
}

// R11: experts beyond the count return their input. The gate scores them too.
TEST(LongcatFlash, ZeroExpertsComeFromTheConfig) {
  constexpr int kZero = 3, kColumns = kExperts + kZero;
  const std::string keys = cat(
      R"("num_layers":1,"num_hidden_layers":2,"moe_topk":)", kTopK, R"(,"expert_ffn_hidden_size":)",
      kWidth, R"(,"routed_scaling_factor":6.0,"zero_expert_type":"identity","zero_expert_num":)");
  const ModelConfig config =
      parse_model_config(config_text("longcat_flash", cat(keys, kZero)), "config.json");
  EXPECT_EQ(config.num_hidden_layers, 1);
  EXPECT_EQ(config.router.num_zero_experts, kZero);
  EXPECT_FALSE(config.router.renormalize);
  EXPECT_EQ(config.shared_intermediate_size, 0);
  Tensors tensors;
  const std::string prefix = "model.layers.0.mlp.";
  tensors.add_floats(prefix + "router.classifier.weight", {kColumns, kHidden});
  const std::vector<float> bias(kColumns, 0.0F);
  tensors.add(prefix + "router.e_score_correction_bias", DType::kF32, {kColumns}, bias);
  add_experts(tensors, prefix, false);
  const TestFolder folder;
  const SafeTensors file = tensors.open(folder);
  const MoeTensors moe = find_moe_tensors(file, config, 0);
  EXPECT_EQ(moe.gate.rows, kColumns);
  EXPECT_EQ(std::ssize(moe.experts), kExperts);

  std::vector<float> logits(kColumns, -1.0F);
  logits[4] = 2.0F;
  logits[kExperts + 1] = 3.0F;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  const Picks picks = route(Router(router_config(config, moe)), logits, 0);
  EXPECT_EQ(picks.ids, (std::vector<int32_t>{-1, 4}));
  EXPECT_EQ(picks.weights[0], 0.0F);
  EXPECT_NEAR(picks.weights[1], 6 * std::exp(2.0) / sum, 1e-5);
  EXPECT_NEAR(picks.identity[0], 6 * std::exp(3.0) / sum, 1e-5);

  const auto error = [&](const std::string& more) {
    return error_text<FormatError>([&] {
      parse_model_config(config_text("longcat_flash", cat(keys, kZero, more)), "config.json");
    });
  };
  EXPECT_NE(error(R"(,"router_bias":true)").find("router_bias' is true"), std::string::npos);
  std::string copies = keys;
  copies.replace(copies.find("identity"), 8, "constant");
  EXPECT_NE(error_text<FormatError>([&] {
              parse_model_config(config_text("longcat_flash", cat(copies, kZero)), "config.json");
            }).find("zero_expert_type' is 'constant'; supported is identity"),
            std::string::npos);
}

}  // namespace
}  // namespace trimtab
