// SPDX-License-Identifier: Apache-2.0
// Packs the layers of a checkpoint.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/cat.h"
#include "model/layer_source.h"
#include "model/rope.h"
#include "model/weight_finder.h"
#include "trimtab/error.h"
#include "trimtab/expert_part.h"

namespace trimtab {

namespace {

void check_config(const ModelConfig& config, DType dtype) {
  switch (config.family) {
    case Family::kMixtral:
    case Family::kQwen2Moe:
    case Family::kQwen3Moe:
    case Family::kOlmoe:
      break;
    default:
      throw InvalidArgument(
          cat("the decoder supports mixtral, qwen2_moe, qwen3_moe and olmoe; this model is ",
              config.model_type));
  }
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    throw InvalidArgument(cat("the decoder keeps weights as F32 or BF16, not ", name(dtype)));
  }
  if (config.partial_rotary_factor != 1.0F) {
    throw InvalidArgument(
        cat("the decoder supports partial_rotary_factor 1, not ", config.partial_rotary_factor));
  }
  if (config.num_attention_heads < 1 || config.num_key_value_heads < 1 ||
      config.num_attention_heads % config.num_key_value_heads != 0) {
    throw InvalidArgument(cat("num_attention_heads ", config.num_attention_heads,
                              " is not a multiple of num_key_value_heads ",
                              config.num_key_value_heads));
  }
  if (config.head_dim < 2 || config.head_dim % 2 != 0) {
    throw InvalidArgument(
        cat("the rotary embedding needs an even head_dim, not ", config.head_dim));
  }
  make_rope(config);  // refuses types of scaling that it does not know
}

// What body returns. An error about weights, which packing reports by row and column, gets the name
// of their module in front.
template <class Body>
auto naming(const std::string& module, const Body& body) {
  try {
    return body();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(cat(module, ": ", error.what()));
  }
}

// The names of one expert's weights: those of its module, or where all experts share tensors, the
// module of all and the number.
std::string expert_name(const SafeTensors& tensors, const MoeTensors& layer, int64_t expert) {
  const bool merged = tensors.contains(layer.name + ".experts.gate_up_proj");
  return cat(layer.name, merged ? ".experts, expert " : ".experts.", expert);
}

// The kinds of tensors that a decoder does not need, beside those that belong to its model.
bool is_harmless(std::string_view name) {
  for (const char* end : {".rotary_emb.inv_freq", ".input_scale", ".input_zero_point",
                          ".activation_scale", ".k_scale", ".v_scale", ".output_scale"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

// Throws when experts of these groups, kept in this format, get rows that are rounded otherwise
// than the checkpoint says.
void check_rounding(const ModelConfig& config, const std::set<int>& groups, WeightFormat format) {
  for (const int group : groups) check_rounding_of_rows(config.quantization.groups[group], format);
}

bool any_weights_only(const ModelConfig& config, const std::set<int>& groups) {
  return std::ranges::any_of(
      groups, [&](int group) { return are_weights_only(config.quantization.groups[group]); });
}

// Throws for a weight that would make logits NaN, of every token or of most: a router refuses them.
void check_gate(const MatrixSource& gate) {
  std::vector<float> row(gate.cols);
  for (int64_t expert = 0; expert < gate.rows; ++expert) {
    read_row(gate, expert, row.data());
    const auto bad = std::ranges::find_if_not(row, [](float w) { return std::isfinite(w); });
    if (bad == row.end()) continue;
    throw InvalidArgument(cat("weight ", bad - row.begin(), " of row ", expert, " is ", *bad));
  }
}

// The embedding as the output head. A head of its own in the file must be the same; compares:
// whether that is looked at.
MatrixSource tied_head(const SafeTensors& tensors, const std::string& embedding, bool compares,
                       WeightFinder::Names& found) {
  const std::string head = "lm_head.weight";
  const TensorView& tied = tensors.at(embedding);
  if (tensors.contains(head)) {
    const TensorView& own = tensors.at(head);
    if (own.dtype != tied.dtype || own.shape != tied.shape ||
        (compares && !std::ranges::equal(own.data, tied.data))) {
      throw tensors.bad_tensor(
          head, cat("differs from ", embedding, ", though tie_word_embeddings is true"));
    }
    found.insert(head);
  }
  return matrix_source(tied);
}

// The tensors of the layers that have experts.
std::map<int, MoeTensors> find_all_moe_tensors(const SafeTensors& tensors,
                                               const ModelConfig& config,
                                               WeightFinder::Names* names) {
  std::map<int, MoeTensors> found;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.is_moe_layer[layer])
      found.emplace(layer, find_moe_tensors(tensors, config, layer, names));
  }
  return found;
}

// Throws for a tensor of the model that was not found, and so has no part in its answers: layers or
// biases that config.json does not know, other names for the same weights.
void refuse_other_tensors(const SafeTensors& tensors, const ModelConfig& config,
                          const WeightFinder::Names& found) {
  const std::string layers = config.tensor_prefix + "layers.";
  for (const std::string& name : tensors.names()) {
    const bool of_model = name.starts_with(config.tensor_prefix) || name.starts_with("lm_head.");
    if (!of_model || found.contains(name) || is_harmless(name)) continue;
    int layer = -1;
    if (name.starts_with(layers))
      std::from_chars(name.data() + layers.size(), name.data() + name.size(), layer);
    if (layer >= config.num_hidden_layers) {
      throw tensors.bad_tensor(name, cat("is of layer ", layer, ", but num_hidden_layers is ",
                                         config.num_hidden_layers));
    }
    throw tensors.bad_tensor(name, cat("has no place in the ", config.model_type,
                                       " that config.json describes, and would be ignored"));
  }
}

// The format that all routed experts are quantised in, if there is one; else dtype.
WeightFormat common_format(const ModelConfig& config, const std::map<int, MoeTensors>& layers,
                           DType dtype) {
  std::optional<WeightFormat> format;
  for (const auto& [number, layer] : layers) {
    const bool weights_only = any_weights_only(config, layer.expert_groups);
    for (const MlpSource& expert : layer.experts) {
      const std::optional<WeightFormat> native = native_format(expert, weights_only);
      if (!native || native != format.value_or(*native)) return dtype;
      format = native;
    }
  }
  return format.value_or(dtype);
}

// Reads and packs the tensors of one checkpoint.
class CheckpointLayers : public LayerSource {
 public:
  CheckpointLayers(const SafeTensors& tensors, const ModelConfig& config,
                   const DecoderFormats& formats, PackedBytes packed, Team* team, bool outline)
      : tensors_(tensors),
        config_(config),
        formats_(formats),
        weights_(tensors, config.quantization, &found_),
        linear_(formats.linear.value_or(formats.dtype)),
        tell_(std::move(packed)),
        team_(team) {
    if (outline) outlines_.emplace(BufferArena::of_outlines());
    check_config(config, formats.dtype);
    moe_ = find_all_moe_tensors(tensors, config, &found_);
    expert_format_ =
        formats.experts ? *formats.experts : common_format(config, moe_, formats.dtype);
    if (formats.experts) return;
    for (const auto& layer : moe_)
      check_rounding(config, layer.second.expert_groups, expert_format_);
  }

  WeightFormat expert_format() const override { return expert_format_; }

  LayerWeights layer(int l, const std::vector<bool>& experts,
                     const std::vector<bool>& parts) override {
    const std::string at = cat(config_.tensor_prefix, "layers.", l, ".");
    LayerWeights layer;
    layer.attention_norm = vector(at + "input_layernorm.weight", config_.hidden_size);
    layer.feed_forward_norm = vector(at + "post_attention_layernorm.weight", config_.hidden_size);
    attention(at + "self_attn.", layer);
    if (config_.is_moe_layer[l]) {
      moe(moe_.at(l), experts, parts, layer);
    } else {
      layer.dense = dense(at + "mlp.");
    }
    return layer;
  }

  std::shared_ptr<const Mlp> expert(int l, int64_t expert) override {
    return pack(moe_.at(l), expert, 0, 1, outlines());
  }

  std::vector<float> final_norm() override {
    return vector(config_.tensor_prefix + "norm.weight", config_.hidden_size);
  }

  Linear head() override {
    const MatrixSource source =
        config_.tie_word_embeddings
            ? tied_head(tensors_, config_.tensor_prefix + "embed_tokens.weight", !outlines_, found_)
            : weights_.matrix("lm_head", config_.vocab_size, config_.hidden_size);
    return packed(naming("lm_head", [&] { return pack(source, VectorSource{}, linear_); }));
  }

  TensorView embedding() override {
    return weights_.plain(config_.tensor_prefix + "embed_tokens.weight",
                          std::array<int64_t, 2>{config_.vocab_size, config_.hidden_size});
  }

  void finish() override {
    refuse_other_tensors(tensors_, config_, found_);
    tensors_.release_pages();
  }

 private:
  // Weights that have just been packed: says so, and gives back the pages that they were read from.
  template <class Weights>
  Weights packed(Weights weights) {
    const size_t bytes = bytes_of(weights);
    if (tell_) tell_(bytes);
    // Often enough to keep the peak of memory low, and seldom enough to cost no time.
    constexpr size_t kMostMapped = size_t{16} << 20;
    unreleased_ += bytes;
    if (unreleased_ < kMostMapped) return weights;
    unreleased_ = 0;
    tensors_.release_pages();
    return weights;
  }
  static size_t bytes_of(const Linear& linear) { return linear.bytes(); }
  static size_t bytes_of(const std::shared_ptr<const Mlp>& mlp) { return mlp->bytes(); }

  std::vector<float> vector(const std::string& name, int64_t size) const {
    const VectorSource source = weights_.vector(name, size);
    std::vector<float> values(size);
    if (outlines_) return values;
    for (int64_t i = 0; i < size; ++i) values[i] = source.at(i);
    return values;
  }

  // Null: each Linear and Mlp has memory of its own.
  BufferArena* outlines() { return outlines_ ? &*outlines_ : nullptr; }

  Linear pack(const MatrixSource& source, const VectorSource& bias, WeightFormat format) {
    return Linear(source, bias, format, nullptr, outlines(), team_);
  }

  Linear linear(const std::string& name, int64_t out, int64_t in, bool has_bias) {
    const VectorSource bias = has_bias ? weights_.vector(name + ".bias", out) : VectorSource{};
    return packed(
        naming(name, [&] { return pack(weights_.matrix(name, out, in), bias, linear_); }));
  }

  void attention(const std::string& prefix, LayerWeights& layer) {
    const int64_t hidden = config_.hidden_size;
    const int64_t q = int64_t{config_.num_attention_heads} * config_.head_dim;
    const int64_t kv = int64_t{config_.num_key_value_heads} * config_.head_dim;
    layer.q = linear(prefix + "q_proj", q, hidden, config_.attention_bias);
    layer.k = linear(prefix + "k_proj", kv, hidden, config_.attention_bias);
    layer.v = linear(prefix + "v_proj", kv, hidden, config_.attention_bias);
    layer.o = linear(prefix + "o_proj", hidden, q, config_.attention_output_bias);
    if (config_.qk_norm == ModelConfig::QkNorm::kNone) return;
    const bool per_head = config_.qk_norm == ModelConfig::QkNorm::kPerHead;
    layer.q_norm = vector(prefix + "q_norm.weight", per_head ? config_.head_dim : q);
    layer.k_norm = vector(prefix + "k_norm.weight", per_head ? config_.head_dim : kv);
  }

  std::shared_ptr<const Mlp> dense(const std::string& prefix) {
    const int64_t hidden = config_.hidden_size, width = config_.intermediate_size;
    MlpSource source;
    source.gate = weights_.matrix(prefix + "gate_proj", width, hidden);
    source.up = weights_.matrix(prefix + "up_proj", width, hidden);
    source.down = weights_.matrix(prefix + "down_proj", hidden, width);
    return packed(naming(prefix, [&] {
      return std::make_shared<const Mlp>(source, config_.activation, linear_, nullptr, outlines(),
                                         team_);
    }));
  }

  std::shared_ptr<const Mlp> pack(const std::string& name, const MlpSource& source, int part,
                                  int num_parts, WeightFormat format, BufferArena* arena) {
    return packed(naming(name, [&] {
      return std::make_shared<const Mlp>(part_of(source, part, num_parts, format),
                                         config_.activation, format, nullptr, arena, team_);
    }));
  }
  std::shared_ptr<const Mlp> pack(const MoeTensors& found, int64_t expert, int part, int num_parts,
                                  BufferArena* arena) {
    return pack(expert_name(tensors_, found, expert), found.experts[expert], part, num_parts,
                expert_format_, arena);
  }

  void moe(const MoeTensors& found, const std::vector<bool>& experts,
           const std::vector<bool>& parts, LayerWeights& layer) {
    naming(found.name + ", the router", [&] {
      if (!outlines_) check_gate(found.gate);
      layer.gate = std::make_shared<const Linear>(pack(found.gate, found.gate_bias, DType::kF32));
      layer.router = std::make_shared<const Router>(router_config(config_, found));
    });
    layer.experts.resize(parts.size() * experts.size());
    BufferArena own;
    BufferArena* const arena = outlines_ ? outlines() : &own;
    const auto num_parts = static_cast<int>(parts.size());
    for (int part = 0; part < num_parts; ++part) {
      for (int64_t e = 0; e < std::ssize(experts); ++e) {
        if (!parts[part] || !experts[e]) continue;
        layer.experts[part * std::ssize(experts) + e] = pack(found, e, part, num_parts, arena);
      }
    }
    if (found.shared) {
      const WeightFormat format = format_of_shared(found);
      layer.shared.resize(parts.size());
      for (int part = 0; part < num_parts; ++part) {
        if (!parts[part]) continue;
        layer.shared[part] =
            pack(found.name + ", shared experts", *found.shared, part, num_parts, format, arena);
      }
    }
    if (found.shared_gate) {
      layer.shared_gate =
          std::make_shared<const Linear>(pack(*found.shared_gate, VectorSource{}, DType::kF32));
    }
  }

  // As asked for, or as they come.
  WeightFormat format_of_shared(const MoeTensors& found) const {
    if (formats_.experts) return *formats_.experts;
    const bool weights_only = any_weights_only(config_, found.shared_groups);
    const WeightFormat format = native_format(*found.shared, weights_only).value_or(formats_.dtype);
    check_rounding(config_, found.shared_groups, format);
    return format;
  }

  const SafeTensors& tensors_;
  const ModelConfig& config_;
  const DecoderFormats formats_;
  WeightFinder::Names found_;  // the names of the tensors that were read
  WeightFinder weights_;
  WeightFormat linear_, expert_format_;
  std::map<int, MoeTensors> moe_;  // of the layers that have experts
  const PackedBytes tell_;
  Team* const team_;                     // null: none
  std::optional<BufferArena> outlines_;  // where nothing is read
  size_t unreleased_ = 0;                // packed since pages were given back
};

}  // namespace

std::unique_ptr<LayerSource> checkpoint_layers(const SafeTensors& tensors,
                                               const ModelConfig& config,
                                               const DecoderFormats& formats, PackedBytes packed,
                                               Team* team, bool outline) {
  return std::make_unique<CheckpointLayers>(tensors, config, formats, std::move(packed), team,
                                            outline);
}

}  // namespace trimtab
