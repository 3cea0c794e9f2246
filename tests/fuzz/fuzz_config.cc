// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of config.json. Any text is either refused with a FormatError or is a
// configuration that the router and the decoder can rely on.
#include <cstdint>
#include <cstdlib>

#include "model/module_list.h"
#include "trimtab/checkpoint.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  trimtab::ModelConfig config;
  try {
    config = trimtab::parse_model_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const trimtab::FormatError&) {
    return 0;
  }
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  check(config.is_moe_layer.size() == layers && config.is_sliding_layer.size() == layers);
  check(config.hidden_size > 0 && config.vocab_size > 0 && config.moe_intermediate_size > 0);
  check(config.num_attention_heads % config.num_key_value_heads == 0);
  check(config.head_dim >= 0 && config.head_dim % 2 == 0);
  check(config.rms_norm_eps > 0.0F && config.rope_theta > 0.0F);
  const trimtab::QuantisedModules modules(config.quantization);
  for (const char* module : {"model.layers.0.mlp.experts.0.gate_proj", "lm_head"}) {
    const trimtab::QuantizationConfig::Group* group = modules.group_of(module);
    check(group == nullptr || (group->block_rows >= 0 && group->block_cols >= 0));
  }
  trimtab::Router router(config.router);  // must take what the reader let through
  return 0;
}
