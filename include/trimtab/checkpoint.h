// SPDX-License-Identifier: Apache-2.0
// Reading Hugging Face checkpoints: safetensors files (one, or several under an index) mapped into memory, and the MoE
// side of config.json for every supported family. All checks of the format are made before a tensor is handed out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/error.h"
#include "trimtab/experts.h"
#include "trimtab/router.h"
#include "trimtab/tensor.h"

namespace trimtab {

// A tensor inside a mapped file, row-major, little-endian. data points into the map: valid while the SafeTensors (or a
// copy of it) lives. The format does not align tensors: a header of odd length shifts all of them, so elements are
// loaded with memcpy or by MatrixSource::at / VectorSource::at, never through a typed pointer.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// One model's tensors. Immutable; may be read by any number of threads. The files are mapped, not copied: a file that
// another process cuts short while it is mapped ends this one with SIGBUS, as with every reader that maps; one that is
// deleted or replaced by rename stays readable.
class SafeTensors {
 public:
  // path: a .safetensors file, an index (.json), or a directory with either (model.safetensors first, then
  // model.safetensors.index.json). Throws FormatError naming file, tensor and offset when a check fails: header length
  // in bounds and <= 100 MB, valid JSON without duplicate names, known dtype, shape x dtype = length (no overflow),
  // offsets contiguous from 0 to the end of the file, no overlap, no hole. The offset of an error is where the tensor's
  // entry stands in the header.
  // Index: each shard is opened once and lies beside the index; every tensor of weight_map must be in its shard. A
  // tensor of a shard that weight_map does not list is there too, as in transformers.
  static SafeTensors open(const std::string& path);

  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  // Throws FormatError naming the checkpoint and the tensor when absent.
  const TensorView& at(std::string_view name) const;
  // As at(), and checks the shape.
  const TensorView& at(std::string_view name, std::span<const int64_t> shape) const;
  // An error about the contents of a tensor that is there, with its file and where its data begins.
  FormatError bad_tensor(std::string_view name, const std::string& what) const;
  std::vector<std::string> names() const;  // sorted
  // The __metadata__ of the file; of an index: of all shards together.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  struct File;  // a mapped file
  struct Entry {
    TensorView view;
    const File* file = nullptr;  // one of files_
  };
  void add_file(const std::string& path, const std::map<std::string, std::string>& shard_of, const std::string& shard);
  void open_index(const std::string& path);

  std::string path_;
  std::vector<std::shared_ptr<const File>> files_;
  std::map<std::string, Entry, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Checks the header of one safetensors image (the whole file's bytes) and lists its tensors, views into the image. For
// fuzzing and for images that are in memory already; file names the source in errors. Checks and errors as in
// SafeTensors::open. metadata: gets the entries of __metadata__ that it does not hold yet.
std::map<std::string, TensorView, std::less<>> parse_safetensors(
    std::span<const std::byte> image, const std::string& file, std::map<std::string, std::string>* metadata = nullptr);

enum class Family { kMixtral, kQwen2Moe, kQwen3Moe, kOlmoe, kDeepseekV2, kDeepseekV3, kGlm4Moe, kKimiK2, kGptOss };
std::string_view name(Family family);

// quantization_config: which modules hold quantised weights, and how.
struct QuantizationConfig {
  enum class Method { kNone, kFp8, kCompressedTensors, kMxfp4 };
  static constexpr int64_t kWhole = 0;  // of a block: the whole dimension

  // How modules store their weights. dtype: of the elements: kI8, kF8E4M3, kU4 (eight in an int32) or kF4 (32 and their
  // scale in a block). block: of the elements that share a scale.
  struct Group {
    std::vector<std::string> targets;  // names, "re:" with a regular expression, or "Linear" for all
    DType dtype = DType::kF8E4M3;
    int64_t block_rows = 1, block_cols = kWhole;
    bool has_zero_points = false;
  };

  Method method = Method::kNone;
  std::vector<Group> groups;  // a module is of the first that has it
  // Not quantised: as targets; fp8 and mxfp4: as modules_to_not_convert of transformers.
  std::vector<std::string> ignore;
};
std::string_view name(QuantizationConfig::Method method);  // quant_method; "" for kNone

// config.json, with every family's aliases resolved. Keys keep their Hugging Face names where they have one.
struct ModelConfig {
  Family family = Family::kQwen3Moe;
  std::string model_type;                // as in the file (in its text_config where there is one)
  std::string tensor_prefix = "model.";  // "language_model.model." for multimodal wrappers

  int hidden_size = 0;
  int num_hidden_layers = 0;
  int vocab_size = 0;

  // MoE
  RouterConfig router;  // without selection_bias: that is a tensor of the checkpoint
  bool has_selection_bias = false;
  bool has_router_bias = false;  // gpt-oss: mlp.router.bias added to the logits
  int moe_intermediate_size = 0;
  int shared_intermediate_size = 0;  // of all shared experts together; 0: none
  bool shared_expert_gate = false;   // Qwen2-MoE
  Activation activation;
  bool has_expert_bias = false;
  std::vector<bool> is_moe_layer;  // [num_hidden_layers]
  QuantizationConfig quantization;

  // The rest of the decoder
  int intermediate_size = 0;  // dense layers
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;  // 0 for the multi-head latent attention of DeepSeek and Kimi
  float rms_norm_eps = 1e-6F;
  float rope_theta = 10000.0F;
  std::string rope_type = "default";  // or the scaling: "yarn", "linear", ...; "per_layer": layers differ
  float partial_rotary_factor = 1.0F;
  int max_position_embeddings = 0;     // 0: not said
  int sliding_window = 0;              // 0: none
  std::vector<bool> is_sliding_layer;  // [num_hidden_layers] layers whose attention sees only the window
  bool attention_bias = false;         // q, k, v have biases
  bool attention_output_bias = false;
  float clip_qkv = 0.0F;  // OLMoE; 0: none
  // Qwen3: per head; OLMoE: over all heads.
  enum class QkNorm { kNone, kPerHead, kWhole } qk_norm = QkNorm::kNone;
  bool tie_word_embeddings = false;
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;
};

// Reads DIRECTORY/config.json (and generation_config.json where it is there, for the end tokens). Throws FormatError
// with the key for missing or impossible values, and for families and quantisers that are not known (with the list of
// those that are).
ModelConfig read_model_config(const std::string& directory);
// The same from text; file names the source in errors.
ModelConfig parse_model_config(std::string_view json, const std::string& file);

// One layer's MoE tensors, found under each family's names, as views into the checkpoint.
struct MoeTensors {
  MatrixSource gate;                  // [experts, hidden]
  VectorSource gate_bias;             // gpt-oss
  std::vector<float> selection_bias;  // e_score_correction_bias
  std::vector<MlpSource> experts;     // [experts]
  std::optional<MlpSource> shared;
  std::optional<MatrixSource> shared_gate;  // [1, hidden]
};
// Throws FormatError for absent tensors, wrong shapes and types, and weights that are quantised otherwise than
// config.quantization says; InvalidArgument when the layer is not there or has no experts.
MoeTensors find_moe_tensors(const SafeTensors& tensors, const ModelConfig& config, int layer);

// The format that holds the weights of an MLP as they are quantised. None: they are not, not all of them alike, or in a
// way that no format has (blocks of another size).
std::optional<WeightFormat> native_format(const MlpSource& mlp);

// A whole tensor of two dimensions, or of one, as a source for packing. Throws InvalidArgument for another number of
// dimensions and for element types other than f32, bf16 and f16.
MatrixSource matrix_source(const TensorView& tensor);
VectorSource vector_source(const TensorView& tensor);

}  // namespace trimtab
