// SPDX-License-Identifier: Apache-2.0
// config.json: what the decoder needs beside the experts.
#include <algorithm>

#include "model/config_fields.h"

namespace trimtab {
namespace {

// Latent or compressed: for engines that bring it.
bool has_other_attention(Family family) {
  return family == Family::kDeepseekV2 || family == Family::kDeepseekV3 ||
         family == Family::kKimiK2 || family == Family::kDeepseekV4 ||
         family == Family::kLongcatFlash;
}

// num_key_value_heads of the config class; 0: as many as num_attention_heads.
int usual_key_value_heads(Family family) {
  switch (family) {
    case Family::kMixtral:
    case Family::kGlm4Moe:
    case Family::kGptOss:
      return 8;
    case Family::kQwen2Moe:
      return 16;
    case Family::kQwen3Moe:
      return 4;
    case Family::kOlmoe:
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kKimiK2:
    case Family::kLongcatFlash:
      return 0;
    case Family::kDeepseekV4:
      return 1;
  }
  return 0;
}

float usual_rms_norm_eps(Family family) {
  const bool larger = family == Family::kMixtral || family == Family::kOlmoe ||
                      family == Family::kGlm4Moe || family == Family::kGptOss ||
                      family == Family::kLongcatFlash;
  return larger ? 1e-5F : 1e-6F;
}

void read_heads(const ConfigFields& fields, ModelConfig& config) {
  config.num_attention_heads = fields.integer("num_attention_heads", 1);
  const int usual =
      fields.is_null("num_key_value_heads") ? 0 : usual_key_value_heads(config.family);
  config.num_key_value_heads =
      fields.integer_or("num_key_value_heads", usual == 0 ? config.num_attention_heads : usual, 1);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    throw fields.error("num_key_value_heads",
                       cat("is ", config.num_key_value_heads, ", which does not divide the ",
                           config.num_attention_heads, " attention heads"));
  }
  if (has_other_attention(config.family)) return;
  if (fields.has("head_dim")) {
    config.head_dim = fields.integer("head_dim", 1);
  } else if (config.family == Family::kGptOss) {
    config.head_dim = 64;
  } else if (config.hidden_size % config.num_attention_heads == 0) {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  } else {
    throw fields.error(
        "num_attention_heads",
        cat("is ", config.num_attention_heads, ", which does not divide hidden_size ",
            config.hidden_size, ", and there is no head_dim"));
  }
  if (config.head_dim % 2 != 0) {
    throw fields.error("head_dim",
                       cat("is ", config.head_dim, "; rotary embeddings need an even one"));
  }
}

void read_biases_and_norms(const ConfigFields& fields, ModelConfig& config) {
  switch (config.family) {
    case Family::kQwen2Moe:
      config.attention_bias = fields.flag_or("qkv_bias", true);
      break;
    case Family::kQwen3Moe:
    case Family::kOlmoe:
    case Family::kGptOss:
      config.attention_bias = fields.flag_or("attention_bias", config.family == Family::kGptOss);
      config.attention_output_bias = config.attention_bias;
      break;
    case Family::kGlm4Moe:
      config.attention_bias = fields.flag_or("attention_bias", false);
      break;
    case Family::kMixtral:
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kKimiK2:
    case Family::kDeepseekV4:
    case Family::kLongcatFlash:
      break;
  }
  using QkNorm = ModelConfig::QkNorm;
  if (config.family == Family::kQwen3Moe) config.qk_norm = QkNorm::kPerHead;
  if (config.family == Family::kGlm4Moe && fields.flag_or("use_qk_norm", false))
    config.qk_norm = QkNorm::kPerHead;
  if (config.family == Family::kOlmoe) {
    config.qk_norm = QkNorm::kWhole;
    config.clip_qkv = fields.real_or("clip_qkv", 0.0F, true);
  }
}

// layer_types where the file has it: which layers slide, [num_hidden_layers].
std::optional<std::vector<bool>> read_layer_types(const ConfigFields& fields, int layers) {
  const nlohmann::json* types = fields.find("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || std::ssize(*types) != layers) {
    throw fields.error("layer_types",
                       cat("is not a list of ", layers, " attention types, one a layer"));
  }
  std::vector<bool> slides;
  for (const nlohmann::json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      throw fields.error("layer_types", cat("holds ", type.dump(),
                                            "; known are full_attention, sliding_attention"));
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

void read_sliding_window(const ConfigFields& fields, ModelConfig& config) {
  const int layers = config.num_hidden_layers;
  config.is_sliding_layer.assign(layers, false);
  if (has_other_attention(config.family)) return;
  const std::optional<std::vector<bool>> types = read_layer_types(fields, layers);
  bool types_decide = false;
  switch (config.family) {
    case Family::kMixtral:
      config.is_sliding_layer.assign(layers, fields.has("sliding_window"));
      break;
    case Family::kQwen3Moe:
      config.is_sliding_layer.assign(
          layers, fields.flag_or("use_sliding_window", false) && fields.has("sliding_window"));
      break;
    case Family::kQwen2Moe:
      types_decide = fields.flag_or("use_sliding_window", false);
      if (types_decide) {
        const int windows = fields.integer_or("max_window_layers", 28, 0);
        for (int layer = 0; layer < std::min(layers, windows); layer += 2)
          config.is_sliding_layer[layer] = true;
      }
      break;
    case Family::kGptOss:
      types_decide = true;
      for (int layer = 0; layer < layers; layer += 2) config.is_sliding_layer[layer] = true;
      break;
    case Family::kOlmoe:
    case Family::kDeepseekV2:
    case Family::kDeepseekV3:
    case Family::kGlm4Moe:
    case Family::kKimiK2:
    case Family::kDeepseekV4:
    case Family::kLongcatFlash:
      break;
  }
  if (types && types_decide) {
    config.is_sliding_layer = *types;
  } else if (types && *types != config.is_sliding_layer) {
    throw fields.error("layer_types", cat("contradicts the other keys, by which ",
                                          config.is_sliding_layer == std::vector<bool>(layers)
                                              ? "no layer has sliding_attention"
                                              : "other layers have sliding_attention"));
  }
  if (std::ranges::find(config.is_sliding_layer, true) != config.is_sliding_layer.end()) {
    config.sliding_window =
        fields.integer_or("sliding_window", config.family == Family::kGptOss ? 128 : 4096, 1);
  }
}

}  // namespace

void read_attention(const ConfigFields& fields, ModelConfig& config) {
  read_heads(fields, config);
  read_biases_and_norms(fields, config);
  read_sliding_window(fields, config);
  config.rms_norm_eps = fields.real_or("rms_norm_eps", usual_rms_norm_eps(config.family));
  config.max_position_embeddings = fields.integer_or("max_position_embeddings", 0, 1);
}

}  // namespace trimtab
