// SPDX-License-Identifier: Apache-2.0
// config.json: the families, and the MoE side. What a file leaves out gets the default of the
// family's config class in transformers; sizes without which nothing can be right must be there.
#include <algorithm>
#include <array>
#include <filesystem>

#include "files/json.h"
#include "model/config_fields.h"
#include "trimtab/checkpoint.h"

namespace trimtab {
namespace {

// No model comes near it, so that a damaged file can't ask for absurd amounts of memory.
constexpr int kMaxLayers = 100'000;

struct ModelType {
  std::string_view name;
  Family family;
};
constexpr std::array<ModelType, 12> kModelTypes = {{{"mixtral", Family::kMixtral},
                                                    {"qwen2_moe", Family::kQwen2Moe},
                                                    {"qwen3_moe", Family::kQwen3Moe},
                                                    {"olmoe", Family::kOlmoe},
                                                    {"deepseek_v2", Family::kDeepseekV2},
                                                    {"deepseek_v3", Family::kDeepseekV3},
                                                    {"glm4_moe", Family::kGlm4Moe},
                                                    {"kimi_k2", Family::kKimiK2},
                                                    {"kimi_k25", Family::kKimiK2},
                                                    {"gpt_oss", Family::kGptOss},
                                                    {"deepseek_v4", Family::kDeepseekV4},
                                                    {"longcat_flash", Family::kLongcatFlash}}};

Family family_of(const ConfigFields& fields, const std::string& model_type) {
  std::string known;
  for (const ModelType& type : kModelTypes) {
    if (type.name == model_type) return type.family;
    known += cat(known.empty() ? "" : ", ", type.name);
  }
  throw fields.error("model_type", cat("is '", model_type, "'; known are ", known));
}

bool is_v3_like(Family family) {
  return family == Family::kDeepseekV3 || family == Family::kKimiK2;
}

// DeepSeek's selection with its groups and bias, which GLM and Kimi took over.
void read_deepseek_routing(const ConfigFields& fields, ModelConfig& config) {
  RouterConfig& router = config.router;
  const bool is_v2 = config.family == Family::kDeepseekV2;
  const std::string scoring_key = fields.alias({"scoring_func", "moe_router_activation_func"});
  const bool is_v4 = config.family == Family::kDeepseekV4;
  const std::string scoring = fields.text_or(scoring_key, is_v2   ? "softmax"
                                                          : is_v4 ? "sqrtsoftplus"
                                                                  : "sigmoid");
  if (scoring == "softmax") {
    router.scoring = Scoring::kSoftmax;
  } else if (scoring == "sigmoid") {
    router.scoring = Scoring::kSigmoid;
  } else if (scoring == "sqrtsoftplus") {
    router.scoring = Scoring::kSqrtSoftplus;
  } else {
    throw fields.error(scoring_key,
                       cat("is '", scoring, "'; known are softmax, sigmoid, sqrtsoftplus"));
  }
  router.routed_scaling_factor =
      fields.real_or("routed_scaling_factor", is_v3_like(config.family) ? 2.5F
                                              : is_v4                   ? 1.5F
                                                                        : 1.0F);

  const std::string method = fields.text_or("topk_method", is_v2 ? "greedy" : "noaux_tc");
  if (method == "greedy") return;
  if (method != "group_limited_greedy" && method != "noaux_tc") {
    throw fields.error("topk_method",
                       cat("is '", method, "'; known are greedy, group_limited_greedy, noaux_tc"));
  }
  config.has_selection_bias = method == "noaux_tc";
  router.group_score = config.has_selection_bias ? GroupScore::kTop2Sum : GroupScore::kMax;
  const std::string groups_key = fields.alias({"n_group", "num_expert_group"});
  router.num_groups =
      fields.integer_or(groups_key, is_v3_like(config.family) ? 8 : 1, 1, router.num_experts);
  const int usual_top_groups = std::min(is_v3_like(config.family) ? 4 : 1, router.num_groups);
  router.top_groups = fields.integer_or("topk_group", usual_top_groups, 1, router.num_groups);
  const int per_group = router.num_experts / router.num_groups;
  if (router.num_experts % router.num_groups != 0) {
    throw fields.error(groups_key, cat("is ", router.num_groups, ": ", router.num_experts,
                                       " experts don't divide"));
  }
  if (router.num_groups > 1 && per_group < 2 && router.group_score == GroupScore::kTop2Sum) {
    throw fields.error(groups_key,
                       cat("is ", router.num_groups, ": groups of one have no two best scores"));
  }
  if (router.top_k > router.top_groups * per_group) {
    throw fields.error("topk_group", cat("is ", router.top_groups, ": that many groups of ",
                                         per_group, " hold fewer than the top ", router.top_k));
  }
}

// LongCat-Flash: some of the experts return their input.
void read_longcat_routing(const ConfigFields& fields, ModelConfig& config) {
  RouterConfig& router = config.router;
  router.routed_scaling_factor = fields.real_or("routed_scaling_factor", 6.0F);
  config.has_selection_bias = true;
  const int most = RouterConfig::kMaxExperts - router.num_experts;
  router.num_zero_experts =
      fields.integer_or("zero_expert_num", fields.is_null("zero_expert_num") ? 0 : 256, 0, most);
  const std::string type = fields.text_or("zero_expert_type", "identity");
  if (type != "identity")
    throw fields.error("zero_expert_type", cat("is '", type, "'; supported is identity"));
  if (fields.flag_or("router_bias", false))
    throw fields.error("router_bias", "is true, which is not supported");
}

void read_routing(const ConfigFields& fields, ModelConfig& config) {
  RouterConfig& router = config.router;
  router.num_experts =
      fields.integer(fields.alias({"num_local_experts", "num_experts", "n_routed_experts"}), 1,
                     RouterConfig::kMaxExperts);
  router.top_k =
      fields.integer(fields.alias({"num_experts_per_tok", "num_experts_per_token", "moe_topk"}), 1,
                     router.num_experts);
  const std::string renormalize_key = fields.alias({"norm_topk_prob", "moe_renormalize"});
  switch (config.family) {
    case Family::kMixtral:
      router.renormalize = true;
      break;
    case Family::kGptOss:
      router.renormalize = false;
      router.softmax_after_top_k = true;
      config.has_router_bias = true;
      break;
    case Family::kQwen2Moe:
    case Family::kQwen3Moe:
    case Family::kOlmoe:
      router.renormalize = fields.flag_or(renormalize_key, false);
      break;
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kGlm4Moe:
    case Family::kKimiK2:
      router.renormalize = fields.flag_or(renormalize_key, config.family != Family::kDeepseekV2);
      read_deepseek_routing(fields, config);
      break;
    case Family::kDeepseekV4:
      router.renormalize = fields.flag_or(renormalize_key, true);
      read_deepseek_routing(fields, config);
      break;
    case Family::kLongcatFlash:
      router.renormalize = fields.flag_or(renormalize_key, false);
      read_longcat_routing(fields, config);
      break;
  }
}

Activation read_activation(const ConfigFields& fields, Family family) {
  if (family == Family::kGptOss) {
    return {ActivationKind::kSwigluClamp, fields.real_or("swiglu_alpha", 1.702F),
            fields.real_or("swiglu_limit", 7.0F)};
  }
  const std::string act = fields.text_or("hidden_act", "silu");
  if (family == Family::kDeepseekV4) {
    if (act != "silu") throw fields.error("hidden_act", cat("is '", act, "'; known is silu"));
    return {ActivationKind::kSwigluClamp, 1.0F, fields.real_or("swiglu_limit", 10.0F), 0.0F};
  }
  if (act == "silu" || act == "swish") return {.kind = ActivationKind::kSilu};
  if (act == "gelu") return {.kind = ActivationKind::kGelu};
  if (act == "gelu_pytorch_tanh" || act == "gelu_new") return {.kind = ActivationKind::kGeluTanh};
  throw fields.error("hidden_act",
                     cat("is '", act, "'; known are silu, gelu, gelu_pytorch_tanh, gelu_new"));
}

void read_shared_experts(const ConfigFields& fields, ModelConfig& config) {
  switch (config.family) {
    case Family::kQwen2Moe:
      config.shared_intermediate_size = fields.integer("shared_expert_intermediate_size", 0);
      config.shared_expert_gate = config.shared_intermediate_size > 0;
      break;
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kGlm4Moe:
    case Family::kKimiK2:
    case Family::kDeepseekV4: {
      const std::string key = fields.alias({"n_shared_experts", "num_shared_experts"});
      const int most = std::numeric_limits<int>::max() / config.moe_intermediate_size;
      const int otherwise = fields.is_null(key) ? 0 : config.family == Family::kDeepseekV2 ? 2 : 1;
      config.shared_intermediate_size =
          config.moe_intermediate_size * fields.integer_or(key, otherwise, 0, most);
      break;
    }
    case Family::kMixtral:
    case Family::kQwen3Moe:
    case Family::kOlmoe:
    case Family::kGptOss:
    case Family::kLongcatFlash:
      break;
  }
}

// Which MoE layers of DeepSeek-V4 choose experts by token id: the first few, or as listed.
void read_hash_layers(const ConfigFields& fields, ModelConfig& config) {
  const int layers = config.num_hidden_layers;
  config.is_hash_layer.assign(layers, false);
  if (const nlohmann::json* types = fields.find("mlp_layer_types")) {
    if (!types->is_array() || std::ssize(*types) != layers)
      throw fields.error("mlp_layer_types",
                         cat("is not a list of ", layers, " types, one a layer"));
    for (int layer = 0; layer < layers; ++layer) {
      const nlohmann::json& type = (*types)[static_cast<size_t>(layer)];
      if (type != "hash_moe" && type != "moe") {
        throw fields.error("mlp_layer_types",
                           cat("holds ", type.dump(), "; known are hash_moe, moe"));
      }
      config.is_hash_layer[layer] = type == "hash_moe";
    }
  } else {
    const int first = std::min(layers, fields.integer_or("num_hash_layers", 3, 0));
    std::fill_n(config.is_hash_layer.begin(), first, true);
  }
  const bool any = std::ranges::find(config.is_hash_layer, true) != config.is_hash_layer.end();
  if (any && config.router.num_groups > 1) {
    throw fields.error("n_group", cat("is ", config.router.num_groups,
                                      ", which does not go with layers of hash routing"));
  }
}

// Which layers have experts.
void read_moe_layers(const ConfigFields& fields, ModelConfig& config) {
  const int layers = config.num_hidden_layers;
  config.is_moe_layer.assign(layers, true);
  const auto keep = [&](auto&& has_experts) {
    for (int layer = 0; layer < layers; ++layer) config.is_moe_layer[layer] = has_experts(layer);
  };
  switch (config.family) {
    case Family::kQwen2Moe:
    case Family::kQwen3Moe: {
      std::vector<int> dense = fields.integers("mlp_only_layers", 0);
      std::ranges::sort(dense);
      const int step = fields.integer_or("decoder_sparse_step", 1, 1);
      keep([&](int layer) {
        return !std::ranges::binary_search(dense, layer) && (layer + 1) % step == 0;
      });
      break;
    }
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kGlm4Moe:
    case Family::kKimiK2: {
      const int usual = is_v3_like(config.family) ? 3 : config.family == Family::kGlm4Moe ? 1 : 0;
      const int dense = fields.integer_or("first_k_dense_replace", usual, 0);
      const int frequency = fields.integer_or("moe_layer_freq", 1, 1);
      keep([&](int layer) { return layer >= dense && layer % frequency == 0; });
      break;
    }
    case Family::kDeepseekV4:
      read_hash_layers(fields, config);
      break;
    case Family::kMixtral:
    case Family::kOlmoe:
    case Family::kGptOss:
    case Family::kLongcatFlash:
      break;
  }
}

void read_experts(const ConfigFields& fields, ModelConfig& config) {
  const bool one_width = config.family == Family::kMixtral || config.family == Family::kOlmoe ||
                         config.family == Family::kGptOss;
  config.moe_intermediate_size =
      fields.integer(one_width ? "intermediate_size"
                               : fields.alias({"moe_intermediate_size", "expert_ffn_hidden_size"}),
                     1);
  config.has_expert_bias = config.family == Family::kGptOss;
  config.activation = read_activation(fields, config.family);
  read_shared_experts(fields, config);
  read_moe_layers(fields, config);
  const bool has_dense_layer =
      std::ranges::find(config.is_moe_layer, false) != config.is_moe_layer.end();
  if (has_dense_layer) config.intermediate_size = fields.integer("intermediate_size", 1);
}

// For layers whose experts would work with another rule than the one read here.
void refuse_what_is_not_supported(const ConfigFields& fields, const ModelConfig& config) {
  const bool is_v4 = config.family == Family::kDeepseekV4;
  for (const char* key : {"num_hash_layers", "zero_expert_num"}) {
    const bool known = config.family == (*key == 'z' ? Family::kLongcatFlash : Family::kDeepseekV4);
    if (!known && fields.integer_or(key, 0, 0) > 0)
      throw fields.error(key, cat("is not supported for ", name(config.family)));
  }
  if (config.family != Family::kGptOss && !is_v4 && fields.has("swiglu_limit")) {
    throw fields.error("swiglu_limit", cat("is not supported for ", name(config.family)));
  }
}

std::vector<int32_t> token_ids(const ConfigFields& fields, const std::string& key) {
  const std::vector<int> ids = fields.integers(key, -1);
  return {ids.begin(), ids.end()};
}

void read_token_ids(const ConfigFields& fields, ModelConfig& config) {
  if (fields.has("eos_token_id")) config.eos_token_ids = token_ids(fields, "eos_token_id");
  if (fields.has("bos_token_id")) config.bos_token_id = fields.integer("bos_token_id", -1);
}

}  // namespace

std::string_view name(Family family) {
  return std::ranges::find(kModelTypes, family, &ModelType::family)->name;
}

ModelConfig parse_model_config(std::string_view text, const std::string& file) {
  const nlohmann::json root = parse_json(text, file);
  if (!root.is_object()) throw FormatError(file, -1, "is not a JSON object");
  const ConfigFields outer(root, file);
  const std::optional<ConfigFields> nested = outer.object("text_config");
  const ConfigFields& fields = nested ? *nested : outer;

  ModelConfig config;
  config.model_type = fields.text_or("model_type", outer.text_or("model_type", ""));
  if (config.model_type.empty()) throw fields.error("model_type", "is missing");
  config.family = family_of(fields, config.model_type);
  if (nested) config.tensor_prefix = "language_model.model.";
  config.hidden_size = fields.integer("hidden_size", 1);
  // LongCat-Flash's num_hidden_layers counts two for each layer with experts.
  const char* const layers =
      config.family == Family::kLongcatFlash ? "num_layers" : "num_hidden_layers";
  config.num_hidden_layers = fields.integer(layers, 1, kMaxLayers);
  config.vocab_size = fields.integer("vocab_size", 1);
  read_routing(fields, config);
  read_experts(fields, config);
  refuse_what_is_not_supported(fields, config);
  const ConfigFields& quantised = fields.has("quantization_config") ? fields : outer;
  if (const std::optional<ConfigFields> quantization = quantised.object("quantization_config")) {
    config.quantization = read_quantization(*quantization, fields, config.family);
  }
  read_attention(fields, config);
  read_rope(fields, config);
  config.tie_word_embeddings =
      fields.flag_or("tie_word_embeddings", outer.flag_or("tie_word_embeddings", false));
  read_token_ids(fields, config);
  return config;
}

ModelConfig read_model_config(const std::string& directory) {
  const std::filesystem::path path(directory);
  const std::string file = (path / "config.json").string();
  ModelConfig config = parse_model_config(read_text(file), file);
  const std::string generation = (path / "generation_config.json").string();
  if (std::filesystem::exists(generation)) {
    const nlohmann::json root = read_json(generation);
    if (!root.is_object()) throw FormatError(generation, -1, "is not a JSON object");
    read_token_ids(ConfigFields(root, generation), config);
  }
  return config;
}

}  // namespace trimtab
