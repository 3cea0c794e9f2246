// SPDX-License-Identifier: Apache-2.0
// The names and the metadata in the files of a packed model, for its writer and its reader.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/cat.h"
#include "model/decoder_weights.h"

namespace trimtab {

// Of the layout of panels, too: another one when kernels read something else than before.
inline constexpr const char* kPackedVersion = "1";

// Every shard has all of these in its __metadata__, and what the model is, under "model.".
inline constexpr const char* kVersionKey = "trimtab.packed";
inline constexpr const char* kKernelsKey = "trimtab.kernels";  // for the reader's information
inline constexpr const char* kColumnsKey = "trimtab.panel_columns";
inline constexpr const char* kDTypeKey = "trimtab.dtype";
inline constexpr const char* kLinearKey = "trimtab.linear";
inline constexpr const char* kExpertsKey = "trimtab.experts";

// What to do where a file can't be used.
inline constexpr const char* kPackAgain = "; pack the original model again (trimtab pack)";

inline std::string layer_name(int layer) {
  return cat("layers.", layer, ".");
}
// The metadata key of the format of a layer's shared experts.
inline std::string shared_key(int layer) {
  return cat("trimtab.", layer_name(layer), "shared");
}

// The metadata key of a tensor's checksum, and the value for its bytes without the zeros behind
// them up to the next page: "SIZE:SUM", the sum in hexadecimal.
inline std::string sum_key(const std::string& tensor) {
  return cat("trimtab.sum.", tensor);
}
std::string sum_of(std::span<const std::byte> bytes);
// Are these the bytes of a whole tensor that `sum` was made of?
bool has_sum(std::span<const std::byte> tensor, const std::string& sum);

// What packed weights depend on in config.json: "model.hidden_size" -> "2048", ...
std::map<std::string, std::string> model_facts(const ModelConfig& config);

// The maps of a layer's attention, under their names in the files.
struct AttentionMap {
  const char* name;
  Linear LayerWeights::* linear;
  int64_t in, out;
  bool has_bias;
};
std::array<AttentionMap, 4> attention_maps(const ModelConfig& config);
// The norms of a layer and their sizes; 0: the model has none.
struct LayerNorm {
  const char* name;
  std::vector<float> LayerWeights::* values;
  int64_t size;
};
std::array<LayerNorm, 4> layer_norms(const ModelConfig& config);

}  // namespace trimtab
