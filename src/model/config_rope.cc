// SPDX-License-Identifier: Apache-2.0
// config.json: the rotary embedding, whose keys stand under rope_scaling, rope_parameters or beside
// them.
#include "model/config_fields.h"

namespace trimtab {
namespace {

// The keys of a scaling that stretches the context. outer: config.json itself.
void read_rope_scaling(const ConfigFields& rope, const ConfigFields& outer, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  const std::string& type = config.rope_type;
  if (type == "default" && rope.has("factor") && rope.real_or("factor", 1.0F) != 1.0F)
    throw rope.error("factor", "is there, but no rope_type that uses it");
  if (type != "linear" && type != "yarn" && type != "llama3") return;
  // Where both are there, the outer one counts, as in transformers.
  const ConfigFields& context = outer.has("original_max_position_embeddings") ? outer : rope;
  scaling.original_max_position_embeddings =
      context.integer_or("original_max_position_embeddings", config.max_position_embeddings, 1);
  if (type != "linear" && scaling.original_max_position_embeddings == 0)
    throw rope.error("original_max_position_embeddings", "is missing");
  if (rope.has("factor")) {
    scaling.factor = rope.real_or("factor", 1.0F);
  } else if (type == "yarn" && config.max_position_embeddings > 0) {
    scaling.factor = static_cast<float>(1.0 * config.max_position_embeddings /
                                        scaling.original_max_position_embeddings);
  } else {
    throw rope.error("factor", "is missing");
  }
  if (type == "yarn" && config.max_position_embeddings > 0) {
    // Published files add rope_scaling and leave the length that the model was trained with.
    const double stretched = 1.0 * scaling.factor * scaling.original_max_position_embeddings;
    if (stretched > config.max_position_embeddings && stretched < std::numeric_limits<int>::max())
      config.max_position_embeddings = static_cast<int>(stretched);
  }
  if (rope.has("attention_factor"))
    scaling.attention_factor = rope.real_or("attention_factor", 1.0F);
  scaling.beta_fast = rope.real_or("beta_fast", scaling.beta_fast);
  scaling.beta_slow = rope.real_or("beta_slow", scaling.beta_slow);
  scaling.mscale = rope.real_or("mscale", 0.0F, true);
  scaling.mscale_all_dim = rope.real_or("mscale_all_dim", 0.0F, true);
  scaling.truncate = rope.flag_or("truncate", true);
  scaling.low_freq_factor = rope.real_or("low_freq_factor", scaling.low_freq_factor);
  scaling.high_freq_factor = rope.real_or("high_freq_factor", scaling.high_freq_factor);
  if (type == "llama3" && scaling.high_freq_factor <= scaling.low_freq_factor)
    throw rope.error("high_freq_factor", "is not above low_freq_factor");
}

}  // namespace

void read_rope(const ConfigFields& fields, ModelConfig& config) {
  const float usual_theta = config.family == Family::kMixtral        ? 1e6F
                            : config.family == Family::kGptOss       ? 150000.0F
                            : config.family == Family::kLongcatFlash ? 1e7F
                                                                     : 10000.0F;
  config.rope_theta = fields.real_or("rope_theta", usual_theta);
  config.partial_rotary_factor =
      fields.real_or("partial_rotary_factor", config.family == Family::kGlm4Moe ? 0.5F : 1.0F);
  // Published files have rope_theta beside rope_scaling; transformers 5 puts all of it into
  // rope_parameters.
  std::optional<ConfigFields> rope = fields.object("rope_scaling");
  if (!rope || rope->is_empty()) rope = fields.object("rope_parameters");
  if (!rope || rope->is_empty()) {
    if (config.family == Family::kGptOss) config.rope_type = "yarn";
    return;
  }
  if (rope->has("full_attention") || rope->has("sliding_attention")) {
    config.rope_type = "per_layer";
    return;
  }
  config.rope_type = rope->text_or("rope_type", rope->text_or("type", "default"));
  config.rope_theta = rope->real_or("rope_theta", config.rope_theta);
  config.partial_rotary_factor =
      rope->real_or("partial_rotary_factor", config.partial_rotary_factor);
  read_rope_scaling(*rope, fields, config);
}

}  // namespace trimtab
