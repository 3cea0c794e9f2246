// SPDX-License-Identifier: Apache-2.0
// Every fixture checkpoint is read, and its MoE blocks are computed here in plain scalar code and
// compared with what transformers computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>

#include "base/cat.h"
#include "model/checkpoint_testing.h"
#include "trimtab/checkpoint.h"

namespace trimtab {
namespace {

// Of a row's error, relative to the row's norm: f32 sums of a few dozen terms in another order.
constexpr float kTolerance = 1e-4F;

// What transformers computed, as rows.
template <class T>
std::vector<std::vector<T>> expected_rows(const SafeTensors& expected, const std::string& name) {
  const TensorView& tensor = expected.at(name);
  EXPECT_EQ(tensor.dtype, dtype_of<T>());
  std::vector<std::vector<T>> rows(tensor.shape[0], std::vector<T>(tensor.shape[1]));
  const std::byte* at = tensor.data.data();
  for (auto& row : rows) {
    std::memcpy(row.data(), at, row.size() * sizeof(T));
    at += row.size() * sizeof(T);
  }
  return rows;
}

std::vector<float> apply(const MatrixSource& weight, const VectorSource& bias,
                         const std::vector<float>& x) {
  EXPECT_EQ(weight.cols, static_cast<int64_t>(x.size()));
  std::vector<float> y;
  for (int64_t i = 0; i < weight.rows; ++i) {
    float sum = bias.data == nullptr ? 0.0F : bias.at(i);
    for (int64_t j = 0; j < weight.cols; ++j) sum += weight.at(i, j) * x[j];
    y.push_back(sum);
  }
  return y;
}

float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

std::vector<float> apply(const MlpSource& mlp, Activation activation, const std::vector<float>& x) {
  std::vector<float> act = apply(mlp.gate, mlp.gate_bias, x);
  const std::vector<float> up = apply(mlp.up, mlp.up_bias, x);
  for (size_t i = 0; i < act.size(); ++i) {
    if (activation.kind == ActivationKind::kSwigluClamp) {
      const float gate = std::min(act[i], activation.limit);
      act[i] = (std::clamp(up[i], -activation.limit, activation.limit) + 1) * gate *
               sigmoid(activation.alpha * gate);
    } else {
      EXPECT_EQ(activation.kind, ActivationKind::kSilu);
      act[i] *= sigmoid(act[i]) * up[i];
    }
  }
  return apply(mlp.down, mlp.down_bias, act);
}

void expect_near(const std::vector<float>& row, const std::vector<float>& wanted) {
  ASSERT_EQ(row.size(), wanted.size());
  float error = 0.0F, norm = 0.0F;
  for (size_t i = 0; i < row.size(); ++i) {
    error = std::max(error, std::abs(row[i] - wanted[i]));
    norm += wanted[i] * wanted[i];
  }
  EXPECT_LE(error, kTolerance * std::sqrt(norm));
}

class MoeTensorsOf : public FixtureTest {};

TEST_P(MoeTensorsOf, LayersAreThoseOfTransformers) {
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool is_moe = expected.contains(cat("layers.", layer, ".moe.input"));
    EXPECT_EQ(config.is_moe_layer[layer], is_moe) << layer;
    if (!is_moe) {
      EXPECT_THROW(find_moe_tensors(tensors, config, layer), InvalidArgument);
    }
  }
  EXPECT_THROW(find_moe_tensors(tensors, config, config.num_hidden_layers), InvalidArgument);
  EXPECT_THROW(find_moe_tensors(tensors, config, -1), InvalidArgument);
}

TEST_P(MoeTensorsOf, RoutersPickTheSame) {
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_moe_layer[layer]) continue;
    SCOPED_TRACE(layer);
    const std::string key = cat("layers.", layer, ".moe.");
    const MoeTensors moe = find_moe_tensors(tensors, config, layer);
    const auto x = expected_rows<float>(expected, key + "input");
    const auto logits = expected_rows<float>(expected, key + "logits");
    const auto ids = expected_rows<int32_t>(expected, key + "top_k_ids");
    const auto weights = expected_rows<float>(expected, key + "top_k_weights");
    const Router router(router_config(config, moe));
    for (size_t token = 0; token < x.size(); ++token) {
      const std::vector<float> row = apply(moe.gate, moe.gate_bias, x[token]);
      expect_near(row, logits[token]);
      std::vector<int32_t> picked(ids[token].size());
      std::vector<float> picked_weights(ids[token].size());
      router.route(ConstRows(row.data(), 1, config.router.num_experts), {},
                   {picked, picked_weights, {}});
      std::map<int32_t, float> found, wanted;
      for (size_t k = 0; k < picked.size(); ++k) {
        found[picked[k]] = picked_weights[k];
        wanted[ids[token][k]] = weights[token][k];
      }
      ASSERT_EQ(found.size(), wanted.size());
      for (const auto& [expert, weight] : wanted)
        EXPECT_NEAR(found[expert], weight, kTolerance * weight) << expert;
    }
  }
}

TEST_P(MoeTensorsOf, BlocksComputeTheSame) {
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_moe_layer[layer]) continue;
    SCOPED_TRACE(layer);
    const std::string key = cat("layers.", layer, ".moe.");
    const MoeTensors moe = find_moe_tensors(tensors, config, layer);
    const auto x = expected_rows<float>(expected, key + "input");
    const auto output = expected_rows<float>(expected, key + "output");
    const auto ids = expected_rows<int32_t>(expected, key + "top_k_ids");
    const auto weights = expected_rows<float>(expected, key + "top_k_weights");
    EXPECT_EQ(moe.shared.has_value(), config.shared_intermediate_size > 0);
    for (size_t token = 0; token < x.size(); ++token) {
      std::vector<float> sum(x[token].size());
      const auto add = [&](const MlpSource& mlp, float weight) {
        const std::vector<float> y = apply(mlp, config.activation, x[token]);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * y[i];
      };
      for (size_t k = 0; k < ids[token].size(); ++k) {
        add(moe.experts.at(ids[token][k]), weights[token][k]);
      }
      if (moe.shared)
        add(*moe.shared,
            moe.shared_gate ? sigmoid(apply(*moe.shared_gate, {}, x[token])[0]) : 1.0F);
      expect_near(sum, output[token]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MoeTensorsOf, testing::ValuesIn(fixture_checkpoints()),
                         FixtureTest::name);

// ---- checkpoints that can't be used

struct Named {
  std::string name;
  std::string dtype;
  std::vector<int> shape;
};

// Writes a file of zeros with these tensors.
void write_tensors(const TestFolder& folder, const std::vector<Named>& tensors) {
  std::string header = "{";
  int end = 0;
  for (const auto& [name, dtype, shape] : tensors) {
    int bytes = dtype.ends_with("64")   ? 8
                : dtype.ends_with("32") ? 4
                : dtype.ends_with("16") ? 2
                                        : 1;
    std::string sizes;
    for (const int size : shape) {
      bytes *= size;
      sizes += cat(sizes.empty() ? "" : ",", size);
    }
    header += cat(header.size() == 1 ? "" : ",", '"', name, R"(":{"dtype":")", dtype,
                  R"(","shape":[)", sizes, R"(],"data_offsets":[)", end, ",", end + bytes, "]}");
    end += bytes;
  }
  folder.write("model.safetensors", safetensors_image(header + "}", end));
}

// Two experts of width 3, hidden size 4, one layer.
ModelConfig small(Family family) {
  ModelConfig config;
  config.family = family;
  config.hidden_size = 4;
  config.num_hidden_layers = 1;
  config.router.num_experts = 2;
  config.router.top_k = 1;
  config.moe_intermediate_size = 3;
  config.is_moe_layer = {true};
  config.has_router_bias = family == Family::kGptOss;
  return config;
}

const std::string kMlp = "model.layers.0.mlp.";

std::vector<Named> qwen_tensors() {
  std::vector<Named> tensors = {{kMlp + "gate.weight", "F32", {2, 4}}};
  for (const char* expert : {"experts.0.", "experts.1."}) {
    tensors.push_back({kMlp + expert + "gate_proj.weight", "BF16", {3, 4}});
    tensors.push_back({kMlp + expert + "up_proj.weight", "BF16", {3, 4}});
    tensors.push_back({kMlp + expert + "down_proj.weight", "BF16", {4, 3}});
  }
  return tensors;
}

std::string find_error(const std::vector<Named>& tensors, const ModelConfig& config) {
  const TestFolder folder;
  write_tensors(folder, tensors);
  const SafeTensors file = SafeTensors::open(folder.path());
  const std::string text = error_text<FormatError>([&] { find_moe_tensors(file, config, 0); });
  EXPECT_TRUE(text.starts_with(folder.path("model.safetensors"))) << text;
  return text;
}

void expect_words(const std::string& text, std::initializer_list<std::string> words) {
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), text.npos) << "'" << word << "' is not in: " << text;
}

TEST(MoeTensors, UnalignedTensorsAreRead) {
  int unaligned = 0;
  for (uint8_t shift = 0; shift < 4; ++shift) {
    const TestFolder folder;
    std::vector<Named> tensors = qwen_tensors();
    tensors.insert(tensors.begin(), {"odd", "U8", {shift}});
    write_tensors(folder, tensors);
    const SafeTensors file = SafeTensors::open(folder.path());
    const MoeTensors moe = find_moe_tensors(file, small(Family::kQwen3Moe), 0);
    unaligned += reinterpret_cast<uintptr_t>(moe.gate.data) % 4 != 0;
    // The data of the file counts 0, 1, 2, ...
    const std::array<uint8_t, 4> first = {shift, uint8_t(shift + 1), uint8_t(shift + 2),
                                          uint8_t(shift + 3)};
    EXPECT_EQ(moe.gate.at(0, 0), std::bit_cast<float>(first));
  }
  EXPECT_EQ(unaligned, 3);
}

TEST(MoeTensors, Missing) {
  std::vector<Named> tensors = qwen_tensors();
  tensors.pop_back();
  expect_words(find_error(tensors, small(Family::kQwen3Moe)),
               {"tensor 'model.layers.0.mlp.experts.1.down_proj.weight' is missing"});
  expect_words(find_error({}, small(Family::kMixtral)),
               {"'model.layers.0.block_sparse_moe.gate.weight' is missing"});
  ModelConfig shared = small(Family::kDeepseekV3);
  shared.has_selection_bias = true;
  shared.shared_intermediate_size = 3;
  tensors = qwen_tensors();
  expect_words(find_error(tensors, shared),
               {"'model.layers.0.mlp.gate.e_score_correction_bias' is missing"});
  tensors.push_back({kMlp + "gate.e_score_correction_bias", "F32", {2}});
  expect_words(find_error(tensors, shared),
               {"'model.layers.0.mlp.shared_experts.gate_proj.weight' is missing"});
}

TEST(MoeTensors, WrongShapesAndTypes) {
  std::vector<Named> tensors = qwen_tensors();
  tensors[3].shape = {3, 4};
  expect_words(find_error(tensors, small(Family::kQwen3Moe)),
               {" at byte ", "experts.0.down_proj.weight' has shape [3, 4] in place of [4, 3]"});
  tensors = qwen_tensors();
  tensors[0].dtype = "F64";
  expect_words(find_error(tensors, small(Family::kQwen3Moe)),
               {" at byte ", "gate.weight' holds F64 in place of F32"});
  tensors = {qwen_tensors()[0], {kMlp + "experts.gate_up_proj", "BF16", {2, 4, 6}}};
  expect_words(find_error(tensors, small(Family::kQwen3Moe)),
               {"experts.gate_up_proj' has shape [2, 4, 6]", "[2, 6, 4]"});
}

// ---- quantised ones

using Method = QuantizationConfig::Method;

ModelConfig quantised(Family family, Method method, QuantizationConfig::Group group) {
  ModelConfig config = small(family);
  if (group.targets.empty()) group.targets = {"Linear"};
  config.quantization = {method, {group}, {}};
  return config;
}

// The tensors of qwen_tensors(), with others in the place of expert 1's up_proj.weight (tensor 5).
std::vector<Named> with_up_proj(std::initializer_list<Named> parts) {
  std::vector<Named> tensors = qwen_tensors();
  tensors.erase(tensors.begin() + 5);
  for (const Named& part : parts)
    tensors.push_back({kMlp + "experts.1.up_proj." + part.name, part.dtype, part.shape});
  return tensors;
}

void expect_reads(const std::vector<Named>& tensors, const ModelConfig& config) {
  const TestFolder folder;
  write_tensors(folder, tensors);
  EXPECT_NO_THROW(find_moe_tensors(SafeTensors::open(folder.path()), config, 0));
}

TEST(MoeTensors, QuantisedWeightsMustBeInTheConfig) {
  const std::string unsaid = "quantization_config does not say so";
  const ModelConfig plain = small(Family::kQwen3Moe);
  const std::vector<Named> fp8 =
      with_up_proj({{"weight", "F8_E4M3", {3, 4}}, {"weight_scale_inv", "F32", {1, 1}}});
  expect_words(find_error(fp8, plain),
               {" at byte ", "experts.1.up_proj.weight' holds F8_E4M3", unsaid});
  const std::vector<Named> int4 = with_up_proj({{"weight_packed", "I32", {3, 1}}});
  expect_words(find_error(int4, plain),
               {" at byte ", "experts.1.up_proj.weight_packed' is quantised", unsaid});
  const std::vector<Named> gptq = with_up_proj({{"qweight", "I32", {1, 4}}});
  expect_words(find_error(gptq, plain), {"experts.1.up_proj.qweight' is quantised", unsaid});

  ModelConfig ignored =
      quantised(Family::kQwen3Moe, Method::kFp8, {.block_rows = 128, .block_cols = 128});
  expect_reads(fp8, ignored);
  ignored.quantization.ignore = {"model.layers.0.mlp.experts.1"};
  expect_words(find_error(fp8, ignored), {"experts.1.up_proj.weight' holds F8_E4M3", unsaid});
}

TEST(MoeTensors, Fp8Blocks) {
  const ModelConfig config =
      quantised(Family::kDeepseekV3, Method::kFp8, {.block_rows = 2, .block_cols = 3});
  const auto up_proj = [](const char* dtype, std::vector<int> shape, const char* scale_type,
                          std::vector<int> scales) {
    return with_up_proj(
        {{"weight", dtype, std::move(shape)}, {"weight_scale_inv", scale_type, std::move(scales)}});
  };
  for (const char* type : {"F32", "BF16", "F16", "F8_E8M0"}) {
    expect_reads(up_proj("F8_E4M3", {3, 4}, type, {2, 2}), config);
  }
  expect_words(
      find_error(up_proj("F8_E4M3", {3, 4}, "F32", {2, 1}), config),
      {" at byte ", "experts.1.up_proj.weight_scale_inv' has shape [2, 1] in place of [2, 2]"});
  expect_words(
      find_error(up_proj("F8_E4M3", {3, 4}, "I32", {2, 2}), config),
      {"experts.1.up_proj.weight_scale_inv' holds I32 in place of F32, BF16, F16 or F8_E8M0"});
  expect_words(find_error(up_proj("F8_E4M3", {4, 3}, "F32", {2, 2}), config),
               {"experts.1.up_proj.weight' has shape [4, 3] in place of [3, 4]"});
  expect_words(find_error(up_proj("F8_E5M2", {3, 4}, "F32", {2, 2}), config),
               {"experts.1.up_proj.weight' holds F8_E5M2 in place of F8_E4M3"});
  expect_words(find_error(with_up_proj({{"weight", "F8_E4M3", {3, 4}}}), config),
               {"tensor 'model.layers.0.mlp.experts.1.up_proj.weight_scale_inv' is missing"});
  expect_words(find_error(with_up_proj({}), config), {"experts.1.up_proj.weight' is missing"});
}

// One scale a tensor, or one a row, under either name.
TEST(MoeTensors, Fp8WithoutBlocks) {
  const ModelConfig config =
      quantised(Family::kQwen3Moe, Method::kFp8, {.scale_of_tensor_or_rows = true});
  const auto up_proj = [](const char* scale, std::vector<int> shape) {
    return with_up_proj({{"weight", "F8_E4M3", {3, 4}}, {scale, "F32", std::move(shape)}});
  };
  for (const char* scale : {"weight_scale", "weight_scale_inv"}) {
    for (const std::vector<int>& shape : {std::vector<int>{}, {1}, {1, 1}, {3}, {3, 1}})
      expect_reads(up_proj(scale, shape), config);
    for (const std::vector<int>& shape : {std::vector<int>{2, 2}, {1, 3}, {4}, {0}}) {
      expect_words(
          find_error(up_proj(scale, shape), config),
          {cat("experts.1.up_proj.", scale, "' holds "),
           "without weight_block_size there is one per tensor, or one for each of 3 rows"});
    }
  }
  expect_words(find_error(with_up_proj({{"weight", "F8_E4M3", {3, 4}}}), config),
               {"experts.1.up_proj.weight_scale' is missing"});
}

TEST(MoeTensors, PlainWeightsHaveNoScale) {
  for (const char* scale : {"weight_scale", "weight_scale_inv"}) {
    const std::vector<Named> both = with_up_proj({{"weight", "BF16", {3, 4}}, {scale, "F32", {1}}});
    for (const ModelConfig& config :
         {small(Family::kQwen3Moe),
          quantised(Family::kQwen3Moe, Method::kCompressedTensors, {.dtype = DType::kI8})}) {
      expect_words(find_error(both, config), {cat("up_proj.", scale, "' is the scale of quantised"),
                                              "up_proj.weight' holds BF16"});
    }
  }
}

TEST(MoeTensors, ExpertsBeyondTheCount) {
  std::vector<Named> tensors = qwen_tensors();
  tensors.push_back({kMlp + "experts.2.gate_proj.weight", "BF16", {3, 4}});
  expect_words(find_error(tensors, small(Family::kQwen3Moe)),
               {" at byte ", "experts.2.gate_proj.weight' is of an expert beyond the 2 that"});
}

TEST(MoeTensors, Int8AndItsZeroPoints) {
  const ModelConfig channels = quantised(Family::kQwen3Moe, Method::kCompressedTensors,
                                         {.dtype = DType::kI8, .has_zero_points = true});
  const auto up_proj = [](std::vector<int> scales, const char* zero_type, std::vector<int> zeros) {
    return with_up_proj({{"weight", "I8", {3, 4}},
                         {"weight_scale", "BF16", std::move(scales)},
                         {"weight_zero_point", zero_type, std::move(zeros)}});
  };
  expect_reads(up_proj({3, 1}, "I8", {3, 1}), channels);
  expect_reads(up_proj({3}, "I8", {3}), channels);
  expect_words(find_error(up_proj({4}, "I8", {4}), channels),
               {"weight_scale' has shape [4] in place of [3]"});
  expect_words(find_error(up_proj({1, 3}, "I8", {1, 3}), channels),
               {"weight_scale' has shape [1, 3] in place of [3, 1]"});
  expect_words(find_error(up_proj({3, 1}, "I8", {1, 1}), channels),
               {"zero_point' has shape [1, 1] in place of [3, 1]"});
  expect_words(find_error(up_proj({3, 1}, "I32", {3, 1}), channels),
               {"weight_zero_point' holds I32 in place of I8"});
  const auto all = [](std::vector<int> scales) {
    return with_up_proj({{"weight", "I8", {3, 4}}, {"weight_scale", "BF16", std::move(scales)}});
  };
  expect_words(find_error(all({3, 1}), channels),
               {"experts.1.up_proj.weight_zero_point' is missing"});

  const ModelConfig whole = quantised(Family::kQwen3Moe, Method::kCompressedTensors,
                                      {.dtype = DType::kI8, .block_rows = 0});
  for (const std::vector<int>& shape : {std::vector<int>{}, {1}, {1, 1}})
    expect_reads(all(shape), whole);
  expect_words(find_error(all({3, 1}), whole),
               {"weight_scale' has shape [3, 1] in place of [1, 1]"});
}

TEST(MoeTensors, PackedInt4) {
  const ModelConfig config =
      quantised(Family::kKimiK2, Method::kCompressedTensors,
                {.dtype = DType::kU4, .block_cols = 2, .has_zero_points = true});
  const auto up_proj = [](std::vector<int> packed, std::vector<int> scales,
                          std::vector<int> zeros) {
    return with_up_proj({{"weight_packed", "I32", std::move(packed)},
                         {"weight_scale", "BF16", std::move(scales)},
                         {"weight_shape", "I64", {2}},
                         {"weight_zero_point", "I32", std::move(zeros)}});
  };
  // The data of the file counts 0, 1, 2, ...: no shape can be right.
  expect_words(find_error(up_proj({3, 1}, {3, 2}, {1, 2}), config),
               {" at byte ", "experts.1.up_proj.weight_shape' says [", "] in place of [3, 4]"});
  std::vector<Named> tensors = up_proj({3, 1}, {3, 2}, {1, 2});
  tensors[tensors.size() - 2].dtype = "F32";
  expect_words(find_error(tensors, config),
               {"experts.1.up_proj.weight_shape' holds F32 in place of I32"});
  tensors.erase(tensors.end() - 2);
  expect_words(find_error(tensors, config), {"experts.1.up_proj.weight_shape' is missing"});
  tensors.push_back({kMlp + "experts.1.up_proj.weight_g_idx", "I32", {4}});
  expect_words(find_error(tensors, config),
               {"weight_g_idx' has the columns in another order, which is not supported"});
}

// With the right weight_shape.
TEST(MoeTensors, PartsOfPackedInt4) {
  const std::string root = TRIMTAB_SOURCE_DIR "/tests/fixtures/checkpoints/qwen3_moe_int4";
  const SafeTensors tensors = SafeTensors::open(root);
  const ModelConfig good = read_model_config(root);
  EXPECT_NO_THROW(find_moe_tensors(tensors, good, 0));
  const auto error = [&](auto spoil) {
    ModelConfig config = good;
    spoil(config.quantization.groups[0]);
    return error_text<FormatError>([&] { find_moe_tensors(tensors, config, 0); });
  };
  expect_words(error([](auto& group) { group.block_cols = 12; }),
               {"gate_proj.weight_scale' has shape [20, 9] in place of [20, 3]"});
  expect_words(error([](auto& group) { group.dtype = DType::kI8; }),
               {"gate_proj.weight' is missing"});
  ModelConfig wide = good;
  wide.moe_intermediate_size = 24;
  expect_words(error_text<FormatError>([&] { find_moe_tensors(tensors, wide, 0); }),
               {"gate_proj.weight_shape' says [20, 36] in place of [24, 36]"});
}

TEST(MoeTensors, Mxfp4) {
  const ModelConfig config =
      quantised(Family::kGptOss, Method::kMxfp4,
                {.targets = {"re:.*experts$"}, .dtype = DType::kF4, .block_cols = 32});
  const std::string experts = kMlp + "experts.";
  const std::vector<Named> good = {{kMlp + "router.weight", "BF16", {2, 4}},
                                   {kMlp + "router.bias", "BF16", {2}},
                                   {experts + "gate_up_proj_blocks", "U8", {2, 6, 1, 16}},
                                   {experts + "gate_up_proj_scales", "U8", {2, 6, 1}},
                                   {experts + "gate_up_proj_bias", "BF16", {2, 6}},
                                   {experts + "down_proj_blocks", "U8", {2, 4, 1, 16}},
                                   {experts + "down_proj_scales", "U8", {2, 4, 1}},
                                   {experts + "down_proj_bias", "BF16", {2, 4}}};
  expect_reads(good, config);
  expect_words(
      find_error(good, small(Family::kGptOss)),
      {" at byte ",
       "experts.gate_up_proj_blocks' is quantised, but quantization_config does not say so"});
  ModelConfig ignored = config;
  ignored.quantization.ignore = {"model.layers.*.mlp"};
  expect_words(find_error(good, ignored), {"experts.gate_up_proj_blocks' is quantised, but"});
  std::vector<Named> bad = good;
  bad[6].shape = {2, 4};
  expect_words(find_error(bad, config),
               {" at byte ", "down_proj_scales' has shape [2, 4] in place of [2, 4, 1]"});
  bad = good;
  bad[2].dtype = "I8";
  expect_words(find_error(bad, config), {"experts.gate_up_proj_blocks' holds I8 in place of U8"});
  bad = good;
  bad.erase(bad.begin() + 3);
  expect_words(find_error(bad, config), {"experts.gate_up_proj_scales' is missing"});
}

TEST(MoeTensors, SourcesOfTensors) {
  const float values[6] = {0, 1, 2, 3, 4, 5};
  const TensorView matrix{DType::kF32, {2, 3}, std::as_bytes(std::span(values))};
  EXPECT_EQ(matrix_source(matrix).at(1, 2), 5.0F);
  const TensorView vector{DType::kF32, {6}, std::as_bytes(std::span(values))};
  EXPECT_EQ(vector_source(vector).at(4), 4.0F);
  EXPECT_THROW(matrix_source(vector), InvalidArgument);
  EXPECT_THROW(vector_source(matrix), InvalidArgument);
  EXPECT_THROW(matrix_source({DType::kI32, {2, 3}, matrix.data}), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
