// SPDX-License-Identifier: Apache-2.0
#include "model/packed_format.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/checksum.h"

namespace trimtab {

std::string sum_of(std::span<const std::byte> bytes) {
  std::array<char, 16> digits = {};
  const auto end = std::to_chars(digits.begin(), digits.end(), checksum(bytes), 16).ptr;
  return cat(bytes.size(), ":", std::string(digits.begin(), end));
}

bool has_sum(std::span<const std::byte> tensor, const std::string& sum) {
  size_t size = 0;
  const char* const end = sum.data() + sum.size();
  const auto [rest, error] = std::from_chars(sum.data(), end, size);
  if (error != std::errc() || size > tensor.size()) return false;
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  return sum_of(tensor.first(size)) == sum && std::ranges::all_of(tensor.subspan(size), is_zero);
}

std::map<std::string, std::string> model_facts(const ModelConfig& config) {
  std::string moe_layers;
  for (const bool moe : config.is_moe_layer) moe_layers += moe ? '1' : '0';
  const Activation& act = config.activation;
  std::map<std::string, std::string> facts;
  const auto add = [&](const char* key, const auto& value) {
    facts.emplace(cat("model.", key), cat(value));
  };
  add("model_type", config.model_type);
  add("hidden_size", config.hidden_size);
  add("num_hidden_layers", config.num_hidden_layers);
  add("vocab_size", config.vocab_size);
  add("num_experts", config.router.num_experts);
  add("moe_intermediate_size", config.moe_intermediate_size);
  add("moe_layers", moe_layers);
  add("shared_intermediate_size", config.shared_intermediate_size);
  add("shared_expert_gate", config.shared_expert_gate);
  add("activation", cat(static_cast<int>(act.kind), " ", act.alpha, " ", act.limit, " ", act.beta));
  add("intermediate_size", config.intermediate_size);
  add("num_attention_heads", config.num_attention_heads);
  add("num_key_value_heads", config.num_key_value_heads);
  add("head_dim", config.head_dim);
  add("attention_bias", config.attention_bias);
  add("attention_output_bias", config.attention_output_bias);
  add("qk_norm", static_cast<int>(config.qk_norm));
  return facts;
}

std::array<AttentionMap, 4> attention_maps(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t q = int64_t{config.num_attention_heads} * config.head_dim;
  const int64_t kv = int64_t{config.num_key_value_heads} * config.head_dim;
  return {{{"q", &LayerWeights::q, hidden, q, config.attention_bias},
           {"k", &LayerWeights::k, hidden, kv, config.attention_bias},
           {"v", &LayerWeights::v, hidden, kv, config.attention_bias},
           {"o", &LayerWeights::o, q, hidden, config.attention_output_bias}}};
}

std::array<LayerNorm, 4> layer_norms(const ModelConfig& config) {
  const int64_t q = int64_t{config.num_attention_heads} * config.head_dim;
  const int64_t kv = int64_t{config.num_key_value_heads} * config.head_dim;
  const bool none = config.qk_norm == ModelConfig::QkNorm::kNone;
  const bool per_head = config.qk_norm == ModelConfig::QkNorm::kPerHead;
  return {{{"attention_norm", &LayerWeights::attention_norm, config.hidden_size},
           {"feed_forward_norm", &LayerWeights::feed_forward_norm, config.hidden_size},
           {"q_norm", &LayerWeights::q_norm,
            none       ? 0
            : per_head ? config.head_dim
                       : q},
           {"k_norm", &LayerWeights::k_norm,
            none       ? 0
            : per_head ? config.head_dim
                       : kv}}};
}

}  // namespace trimtab
