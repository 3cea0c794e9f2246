// SPDX-License-Identifier: Apache-2.0
// Reading Hugging Face checkpoints: safetensors files (one, or several under an index) mapped into
// memory, and the MoE side of config.json for every supported family. All checks of the format are
// made before a tensor is handed out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/error.h"
#include "trimtab/experts.h"
#include "trimtab/router.h"
#include "trimtab/safetensors.h"
#include "trimtab/tensor.h"

namespace trimtab {

enum class Family {
  kMixtral,
  kQwen2Moe,
  kQwen3Moe,
  kOlmoe,
  kDeepseekV2,
  kDeepseekV3,
  kGlm4Moe,
  kKimiK2,
  kGptOss,
  kDeepseekV4,
  kLongcatFlash
};
std::string_view name(Family family);

// quantization_config: which modules hold quantised weights, and how.
struct QuantizationConfig {
  enum class Method { kNone, kFp8, kCompressedTensors, kMxfp4, kGptq, kAwq };
  static constexpr int64_t kWhole = 0;  // a block has the whole dimension

  // How the rows that meet the weights of a module are quantised.
  enum class Rows {
    kPlain,    // They are not: the checkpoint quantises weights only.
    kDynamic,  // They are, by scales that are computed from the rows themselves.
    kStatic    // They are, by scales that the checkpoint brings.
  };

  // How modules store their weights.
  struct Group {
    // Names, "re:" with a regular expression, or "Linear" for all linear maps.
    std::vector<std::string> targets;
    // The type of the elements: kI8, kF8E4M3, kU4 (eight in an int32), kU8 (four) or kF4 (32 in a
    // block with their scale).
    DType dtype = DType::kF8E4M3;
    int64_t block_rows = 1, block_cols = kWhole;  // elements that share a scale
    // fp8 without weight_block_size: one scale a tensor, or one a row, as the tensors have it.
    bool scale_of_tensor_or_rows = false;
    bool has_zero_points = false;
    int zero_offset = 0;  // added to the zero points that are stored
    Rows rows = Rows::kPlain;
    DType rows_dtype = DType::kI8;     // what rows are quantised to, unless rows is kPlain
    bool has_input_scale = false;      // kStatic: by one scale, and no zero point, for all rows
    std::string rows_key, rows_value;  // the key that says so and its value, for errors
  };

  Method method = Method::kNone;
  std::vector<Group> groups;  // a module belongs to the first group that has it
  // The modules that are not quantised: written as targets are, or for fp8 and mxfp4 as
  // modules_to_not_convert of transformers is.
  std::vector<std::string> ignore;
};
std::string_view name(QuantizationConfig::Method method);  // quant_method; "" for kNone

// Throws InvalidArgument, naming the key, when weights of this group may not be kept in this format
// without a word, because it rounds rows otherwise than the checkpoint says: to 8 bits where they
// are not quantised, or by scales of their own where the checkpoint brings others than one for all
// rows (MlpSource's a1_scale, a2_scale). Whoever accepts that rounding does not call it. Formats
// that keep rows in bf16 or f32 fit weights of which only the scales of rows are dynamic, or that
// have none.
void check_rounding_of_rows(const QuantizationConfig::Group& group, WeightFormat format);

// How a model stretches its rotary embedding to a longer context: rope_scaling, or rope_parameters.
// The names are those of the keys.
struct RopeScaling {
  float factor = 1.0F;                       // linear, yarn, llama3
  int original_max_position_embeddings = 0;  // yarn, llama3
  // yarn
  std::optional<float> attention_factor;  // computed from factor where it is not given
  float beta_fast = 32.0F, beta_slow = 1.0F;
  float mscale = 0.0F, mscale_all_dim = 0.0F;  // 0: not given
  bool truncate = true;
  // llama3
  float low_freq_factor = 1.0F, high_freq_factor = 4.0F;
};

// config.json, with every family's aliases resolved. Keys keep their Hugging Face names where they
// have one.
struct ModelConfig {
  Family family = Family::kQwen3Moe;
  std::string model_type;                // as in the file (in its text_config where there is one)
  std::string tensor_prefix = "model.";  // "language_model.model." for multimodal wrappers

  int hidden_size = 0;
  int num_hidden_layers = 0;
  int vocab_size = 0;

  // MoE
  RouterConfig router;  // without selection_bias, which is a tensor of the checkpoint
  bool has_selection_bias = false;
  bool has_router_bias = false;  // gpt-oss adds mlp.router.bias to the logits
  int moe_intermediate_size = 0;
  int shared_intermediate_size = 0;  // width of all shared experts together; 0: none
  bool shared_expert_gate = false;   // Qwen2-MoE
  Activation activation;
  bool has_expert_bias = false;
  std::vector<bool> is_moe_layer;  // [num_hidden_layers]
  // [num_hidden_layers] DeepSeek-V4: the MoE layers whose experts follow from the token ids, by a
  // table of the checkpoint. Empty: none.
  std::vector<bool> is_hash_layer;
  QuantizationConfig quantization;

  // The rest of the decoder
  int intermediate_size = 0;  // dense layers
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;  // 0 for the multi-head latent attention of DeepSeek and Kimi
  float rms_norm_eps = 1e-6F;
  float rope_theta = 10000.0F;
  // "default", or how it is scaled: "linear", "yarn", ...; "per_layer" where layers differ.
  std::string rope_type = "default";
  RopeScaling rope_scaling;
  float partial_rotary_factor = 1.0F;
  int max_position_embeddings = 0;  // 0: not said
  int sliding_window = 0;           // 0: none
  // [num_hidden_layers] true where the attention of the layer sees only the window.
  std::vector<bool> is_sliding_layer;
  bool attention_bias = false;  // q, k, v have biases
  bool attention_output_bias = false;
  float clip_qkv = 0.0F;  // OLMoE; 0: none
  // Qwen3: per head; OLMoE: over all heads.
  enum class QkNorm { kNone, kPerHead, kWhole } qk_norm = QkNorm::kNone;
  bool tie_word_embeddings = false;
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;
};

// Reads DIRECTORY/config.json (and generation_config.json where it is there, for the end tokens).
// Throws FormatError with the key for missing or impossible values, and for families and quantisers
// that are not known (with the list of those that are).
ModelConfig read_model_config(const std::string& directory);
// Reads the same from text; errors name the source as `file`.
ModelConfig parse_model_config(std::string_view json, const std::string& file);

// The MoE tensors of one layer, found under the names that its family gives them. They are views
// into the checkpoint.
struct MoeTensors {
  std::string name;                   // the module's name, as "model.layers.3.mlp", for errors
  MatrixSource gate;                  // [experts, zero experts included; hidden]
  VectorSource gate_bias;             // gpt-oss
  std::vector<float> selection_bias;  // e_score_correction_bias
  std::vector<int32_t> hash_table;    // hash layers: tid2eid [vocabulary][top_k]
  std::vector<MlpSource> experts;     // [experts]
  std::optional<MlpSource> shared;
  std::optional<MatrixSource> shared_gate;  // [1, hidden]
  // Indices into QuantizationConfig::groups: those that quantised experts, and quantised shared
  // experts, belong to.
  std::set<int> expert_groups, shared_groups;
};
// Throws FormatError for absent tensors, wrong shapes and types, weights that are quantised
// otherwise than config.quantization says, and experts beyond those that config.json counts;
// InvalidArgument when the layer is not there or has no experts.
MoeTensors find_moe_tensors(const SafeTensors& tensors, const ModelConfig& config, int layer);

// A layer's shared experts as experts of the routed ones' width, for those who place and dispatch
// them like routed ones: RouterConfig::num_appended_experts is their number, and their logical ids
// follow the routed ones'. They are views into the checkpoint. Their sum on one row is compared
// with the whole. Empty where there are none. Throws InvalidArgument when the shared experts have
// a gate (their weight is not 1), can't be divided, or don't add up.
std::vector<MlpSource> appended_experts(const ModelConfig& config, const MoeTensors& layer);

// The routing of one layer: that of the model with the layer's bias or table.
RouterConfig router_config(const ModelConfig& config, const MoeTensors& layer);

// The format that holds the weights of an MLP as they are quantised. None: they are not quantised,
// not all of them alike, or in a way that no format has (blocks of another size). How the format
// rounds rows is another matter: check_rounding_of_rows(). weights_only: integers in a format that
// leaves rows in bf16.
std::optional<WeightFormat> native_format(const MlpSource& mlp, bool weights_only = false);
// Do modules of this group quantise their weights, but not their rows to int8?
bool are_weights_only(const QuantizationConfig::Group& group);

// A whole tensor of two dimensions, or of one, as a source for packing. Throws InvalidArgument for
// another number of dimensions and for element types other than f32, bf16 and f16.
MatrixSource matrix_source(const TensorView& tensor);
VectorSource vector_source(const TensorView& tensor);

}  // namespace trimtab
