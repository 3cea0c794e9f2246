// SPDX-License-Identifier: Apache-2.0
// One layer's MoE tensors under the names of each family: an expert a tensor as published, all
// experts in one tensor as transformers 5 saves them, or gpt-oss's forms: transposed, or in blocks
// of MXFP4. Nothing is copied: strides say how to read it.

#include <algorithm>
#include <array>

#include "base/cat.h"
#include "model/weight_finder.h"

namespace trimtab {
namespace {

// A matrix in the middle of a tensor. first: the index of its first element.
MatrixSource part(const TensorView& tensor, int64_t first, int64_t rows, int64_t cols,
                  int64_t row_stride, int64_t col_stride) {
  return {tensor.data.data() + first * bits(tensor.dtype) / 8,
          tensor.dtype,
          rows,
          cols,
          row_stride,
          col_stride};
}

// Every step-th row of a matrix whose rows have scales of their own.
MatrixSource every(const MatrixSource& matrix, int64_t first, int64_t rows, int64_t step) {
  MatrixSource result = matrix;
  result.data += first * matrix.row_stride * bits(matrix.dtype) / 8;
  result.rows = rows;
  result.row_stride *= step;
  Quantization& q = result.quantization;
  q.scales += first * q.scale_row_stride * bits(q.scale_dtype) / 8;
  q.scale_row_stride *= step;
  return result;
}

VectorSource part(const TensorView& tensor, int64_t first, int64_t size, int64_t stride) {
  return {tensor.data.data() + first * bits(tensor.dtype) / 8, tensor.dtype, size, stride};
}

// Reads the tensors of one MoE block. E: experts, H: hidden, I: the experts' width.
class Block {
 public:
  Block(const SafeTensors& tensors, const ModelConfig& config, int layer,
        WeightFinder::Names* names)
      : tensors_(tensors),
        weights_(tensors, config.quantization, names),
        config_(config),
        num_experts_(config.router.num_experts),
        hidden_(config.hidden_size),
        width_(config.moe_intermediate_size) {
    const std::string prefix = cat(config.tensor_prefix, "layers.", layer, ".");
    const bool old_name =
        config.family == Family::kMixtral && !tensors.contains(prefix + "mlp.gate.weight");
    prefix_ = prefix + (old_name ? "block_sparse_moe." : "mlp.");
    const std::string published = cat("layers.", layer, ".ffn.");
    if (config.family == Family::kDeepseekV4 && tensors.contains(published + "gate.weight")) {
      prefix_ = published;
      published_v4_ = true;
    }
    if (!config.is_hash_layer.empty()) is_hash_ = config.is_hash_layer[layer];
  }

  MoeTensors find() const {
    MoeTensors found;
    found.name = prefix_.substr(0, prefix_.size() - 1);
    refuse_more_experts();
    find_gate(found);
    if (config_.family == Family::kGptOss) {
      found.experts = tensors_.contains(prefix_ + "experts.gate_up_proj_blocks")
                          ? mxfp4_experts()
                          : transposed_experts();
    } else if (tensors_.contains(prefix_ + "experts.gate_up_proj")) {
      found.experts = merged_experts();
    } else {
      found.experts = single_experts(found.expert_groups);
    }
    if (config_.shared_intermediate_size > 0) {
      const bool qwen = config_.family == Family::kQwen2Moe;
      found.shared = mlp(prefix_ + (qwen ? "shared_expert." : "shared_experts."),
                         config_.shared_intermediate_size, found.shared_groups);
    }
    if (config_.shared_expert_gate) {
      found.shared_gate = weights_.matrix(prefix_ + "shared_expert_gate", 1, hidden_);
    }
    return found;
  }

 private:
  void find_gate(MoeTensors& found) const {
    const bool longcat = config_.family == Family::kLongcatFlash;
    const bool router = longcat || config_.family == Family::kGptOss;
    const std::string gate = prefix_ + (router ? "router" : "gate");
    const int64_t columns = num_experts_ + config_.router.num_zero_experts;
    found.gate = weights_.matrix(longcat ? gate + ".classifier" : gate, columns, hidden_);
    if (config_.has_router_bias) found.gate_bias = weights_.vector(gate + ".bias", columns);
    if (is_hash_) {
      found.hash_table = hash_table(gate + ".tid2eid");
    } else if (config_.has_selection_bias) {
      const VectorSource bias =
          weights_.vector(gate + (published_v4_ ? ".bias" : ".e_score_correction_bias"), columns);
      for (int64_t expert = 0; expert < columns; ++expert)
        found.selection_bias.push_back(bias.at(expert));
    }
  }

  std::vector<int32_t> hash_table(const std::string& name) const {
    const std::vector<int64_t> table = weights_.integers(
        name, std::array{int64_t{config_.vocab_size}, int64_t{config_.router.top_k}});
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i] >= 0 && table[i] < num_experts_) continue;
      throw tensors_.bad_tensor(name,
                                cat("names expert ", table[i], " of ", num_experts_, " for token ",
                                    i / static_cast<size_t>(config_.router.top_k)));
    }
    return {table.begin(), table.end()};
  }

  // groups: gets those of the matrices that are quantised.
  MlpSource mlp(const std::string& prefix, int64_t width, std::set<int>& groups) const {
    const bool w123 = config_.family == Family::kMixtral || published_v4_;
    const auto matrix = [&](const char* name, int64_t rows, int64_t cols) {
      const std::string module = prefix + name;
      if (const int group = weights_.group_of(module); group >= 0) groups.insert(group);
      return weights_.matrix(module, rows, cols);
    };
    MlpSource source;
    source.gate = matrix(w123 ? "w1" : "gate_proj", width, hidden_);
    source.up = matrix(w123 ? "w3" : "up_proj", width, hidden_);
    source.down = matrix(w123 ? "w2" : "down_proj", hidden_, width);
    const auto scale = [&](const char* name) { return weights_.input_scale(prefix + name); };
    // Gate and up meet the same rows. Where their scales differ the larger one cuts nothing off.
    source.a1_scale = std::max(scale(w123 ? "w1" : "gate_proj"), scale(w123 ? "w3" : "up_proj"));
    source.a2_scale = scale(w123 ? "w2" : "down_proj");
    return source;
  }

  std::vector<MlpSource> single_experts(std::set<int>& groups) const {
    std::vector<MlpSource> experts;
    for (int64_t e = 0; e < num_experts_; ++e)
      experts.push_back(mlp(cat(prefix_, "experts.", e, "."), width_, groups));
    return experts;
  }

  // The router would never choose them.
  void refuse_more_experts() const {
    const std::string next = cat(prefix_, "experts.", num_experts_, ".");
    for (const char* matrix : {"gate_proj", "w1"}) {
      for (const char* weight : {".weight", ".weight_packed", ".qweight"}) {
        const std::string name = cat(next, matrix, weight);
        if (tensors_.contains(name)) {
          throw tensors_.bad_tensor(
              name, cat("is of an expert beyond the ", num_experts_, " that config.json counts"));
        }
      }
    }
  }

  // gate_up_proj [E, 2I, H], gate rows first; down_proj [E, H, I].
  std::vector<MlpSource> merged_experts() const {
    const TensorView& gate_up = find("experts.gate_up_proj", {num_experts_, 2 * width_, hidden_});
    const TensorView& down = find("experts.down_proj", {num_experts_, hidden_, width_});
    std::vector<MlpSource> experts(num_experts_);
    for (int64_t e = 0; e < num_experts_; ++e) {
      MlpSource& expert = experts[e];
      expert.gate = part(gate_up, e * 2 * width_ * hidden_, width_, hidden_, hidden_, 1);
      expert.up = part(gate_up, (e * 2 + 1) * width_ * hidden_, width_, hidden_, hidden_, 1);
      expert.down = part(down, e * hidden_ * width_, hidden_, width_, width_, 1);
    }
    return experts;
  }

  // gate_up_proj [E, H, 2I] with gate in the even columns and up in the odd ones; down_proj [E, I,
  // H].
  std::vector<MlpSource> transposed_experts() const {
    const TensorView& gate_up = find("experts.gate_up_proj", {num_experts_, hidden_, 2 * width_});
    const TensorView& down = find("experts.down_proj", {num_experts_, width_, hidden_});
    std::vector<MlpSource> experts(num_experts_);
    for (int64_t e = 0; e < num_experts_; ++e) {
      MlpSource& expert = experts[e];
      const int64_t first = e * hidden_ * 2 * width_;
      expert.gate = part(gate_up, first, width_, hidden_, 2, 2 * width_);
      expert.up = part(gate_up, first + 1, width_, hidden_, 2, 2 * width_);
      expert.down = part(down, e * width_ * hidden_, hidden_, width_, 1, hidden_);
    }
    add_biases(experts);
    return experts;
  }

  // The same, quantised and not transposed: gate_up_proj [E, 2I, H] with gate in the even rows;
  // down_proj [E, H, I].
  std::vector<MlpSource> mxfp4_experts() const {
    const MatrixSource gate_up =
        weights_.mxfp4(prefix_ + "experts", "gate_up_proj", num_experts_, 2 * width_, hidden_);
    const MatrixSource down =
        weights_.mxfp4(prefix_ + "experts", "down_proj", num_experts_, hidden_, width_);
    std::vector<MlpSource> experts(num_experts_);
    for (int64_t e = 0; e < num_experts_; ++e) {
      MlpSource& expert = experts[e];
      expert.gate = every(gate_up, e * 2 * width_, width_, 2);
      expert.up = every(gate_up, e * 2 * width_ + 1, width_, 2);
      expert.down = every(down, e * hidden_, hidden_, 1);
    }
    add_biases(experts);
    return experts;
  }

  // gate_up_proj_bias [E, 2I], gate and up in turn; down_proj_bias [E, H].
  void add_biases(std::vector<MlpSource>& experts) const {
    const TensorView& gate_up = find("experts.gate_up_proj_bias", {num_experts_, 2 * width_});
    const TensorView& down = find("experts.down_proj_bias", {num_experts_, hidden_});
    for (int64_t e = 0; e < num_experts_; ++e) {
      MlpSource& expert = experts[e];
      expert.gate_bias = part(gate_up, e * 2 * width_, width_, 2);
      expert.up_bias = part(gate_up, e * 2 * width_ + 1, width_, 2);
      expert.down_bias = part(down, e * hidden_, hidden_, 1);
    }
  }

  const TensorView& find(const char* name, std::initializer_list<int64_t> shape) const {
    return weights_.plain(prefix_ + name, std::span(shape.begin(), shape.size()));
  }

  const SafeTensors& tensors_;
  WeightFinder weights_;
  const ModelConfig& config_;
  std::string prefix_;
  int64_t num_experts_, hidden_, width_;
  bool published_v4_ = false;  // DeepSeek-V4 with its own names, not those of transformers
  bool is_hash_ = false;
};

}  // namespace

MoeTensors find_moe_tensors(const SafeTensors& tensors, const ModelConfig& config, int layer,
                            WeightFinder::Names* found) {
  const int64_t layers = std::ssize(config.is_moe_layer);
  if (layer < 0 || layer >= layers)
    throw InvalidArgument(cat("layer ", layer, " of a model with ", layers, " layers"));
  if (!config.is_moe_layer[layer]) throw InvalidArgument(cat("layer ", layer, " has no experts"));
  return Block(tensors, config, layer, found).find();
}

RouterConfig router_config(const ModelConfig& config, const MoeTensors& layer) {
  RouterConfig router = config.router;
  router.selection_bias = layer.selection_bias;
  router.hash_table = layer.hash_table;
  return router;
}

MoeTensors find_moe_tensors(const SafeTensors& tensors, const ModelConfig& config, int layer) {
  return find_moe_tensors(tensors, config, layer, nullptr);
}

}  // namespace trimtab
