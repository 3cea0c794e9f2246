// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_weights.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "base/cat.h"
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

// The embedding as the output head. A head of its own in the file must be the same.
MatrixSource tied_head(const SafeTensors& tensors, const std::string& embedding,
                       WeightFinder::Names& found) {
  const std::string head = "lm_head.weight";
  const TensorView& tied = tensors.at(embedding);
  if (tensors.contains(head)) {
    const TensorView& own = tensors.at(head);
    if (own.dtype != tied.dtype || own.shape != tied.shape ||
        !std::ranges::equal(own.data, tied.data)) {
      throw tensors.bad_tensor(
          head, cat("differs from ", embedding, ", though tie_word_embeddings is true"));
    }
    found.insert(head);
  }
  return matrix_source(tied);
}

// Reads and packs the tensors of one checkpoint.
class Reader {
 public:
  // found: gets the names of the tensors that were read.
  Reader(const SafeTensors& tensors, const ModelConfig& config, const DecoderFormats& formats,
         WeightFinder::Names& found)
      : tensors_(tensors),
        config_(config),
        weights_(tensors, config.quantization, &found),
        dtype_(formats.dtype),
        linear_(formats.linear.value_or(formats.dtype)) {}

  const WeightFinder& weights() const { return weights_; }
  std::vector<float> vector(const std::string& name, int64_t size) const {
    const VectorSource source = weights_.vector(name, size);
    std::vector<float> values(size);
    for (int64_t i = 0; i < size; ++i) values[i] = source.at(i);
    return values;
  }
  Linear linear(const std::string& name, int64_t out, int64_t in, bool has_bias) const {
    const VectorSource bias = has_bias ? weights_.vector(name + ".bias", out) : VectorSource{};
    return naming(name, [&] { return Linear(weights_.matrix(name, out, in), bias, linear_); });
  }

  void attention(const std::string& prefix, LayerWeights& layer) const {
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

  std::shared_ptr<const Mlp> dense(const std::string& prefix) const {
    const int64_t hidden = config_.hidden_size, width = config_.intermediate_size;
    MlpSource source;
    source.gate = weights_.matrix(prefix + "gate_proj", width, hidden);
    source.up = weights_.matrix(prefix + "up_proj", width, hidden);
    source.down = weights_.matrix(prefix + "down_proj", hidden, width);
    return naming(prefix,
                  [&] { return std::make_shared<const Mlp>(source, config_.activation, linear_); });
  }

  // wanted: the logical experts to pack. parts: which parts of each to pack. format: of the routed
  // experts. shared_format: if not given, as they come.
  void moe(const MoeTensors& found, const std::vector<bool>& wanted, const std::vector<bool>& parts,
           WeightFormat format, std::optional<WeightFormat> shared_format,
           LayerWeights& layer) const {
    naming(found.name + ", the router", [&] {
      check_gate(found.gate);
      layer.gate = std::make_shared<const Linear>(found.gate, found.gate_bias, DType::kF32);
      layer.router = std::make_shared<const Router>(router_config(config_, found));
    });
    layer.experts.resize(parts.size() * wanted.size());
    BufferArena arena;
    const auto num_parts = static_cast<int>(parts.size());
    const auto pack = [&](const std::string& name, const MlpSource& source, int part,
                          WeightFormat as) {
      return naming(name, [&] {
        return std::make_shared<const Mlp>(part_of(source, part, num_parts, as), config_.activation,
                                           as, nullptr, &arena);
      });
    };
    for (int part = 0; part < num_parts; ++part) {
      for (int64_t e = 0; e < std::ssize(wanted); ++e) {
        if (parts[part] && wanted[e]) {
          layer.experts[part * std::ssize(wanted) + e] =
              pack(expert_name(tensors_, found, e), found.experts[e], part, format);
        }
      }
    }
    if (found.shared) {
      const WeightFormat format_of_shared =
          shared_format
              ? *shared_format
              : native_format(*found.shared, any_weights_only(config_, found.shared_groups))
                    .value_or(dtype_);
      if (!shared_format) check_rounding(config_, found.shared_groups, format_of_shared);
      layer.shared.resize(parts.size());
      for (int part = 0; part < num_parts; ++part) {
        if (!parts[part]) continue;
        layer.shared[part] =
            pack(found.name + ", shared experts", *found.shared, part, format_of_shared);
      }
    }
    if (found.shared_gate) {
      layer.shared_gate =
          std::make_shared<const Linear>(*found.shared_gate, VectorSource{}, DType::kF32);
    }
  }

 private:
  const SafeTensors& tensors_;
  const ModelConfig& config_;
  WeightFinder weights_;
  DType dtype_;
  WeightFormat linear_;
};

// The tensors of the layers that have experts.
std::vector<MoeTensors> find_all_moe_tensors(const SafeTensors& tensors, const ModelConfig& config,
                                             WeightFinder::Names* names = nullptr) {
  std::vector<MoeTensors> found;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.is_moe_layer[layer])
      found.push_back(find_moe_tensors(tensors, config, layer, names));
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
WeightFormat common_format(const ModelConfig& config, const std::vector<MoeTensors>& layers,
                           DType dtype) {
  std::optional<WeightFormat> format;
  for (const MoeTensors& layer : layers) {
    const bool weights_only = any_weights_only(config, layer.expert_groups);
    for (const MlpSource& expert : layer.experts) {
      const std::optional<WeightFormat> native = native_format(expert, weights_only);
      if (!native || native != format.value_or(*native)) return dtype;
      format = native;
    }
  }
  return format.value_or(dtype);
}

// [num_experts] which experts of a layer the slots of these ranks hold.
std::vector<bool> held_experts(const Placement& placement, int layer, std::span<const int> ranks) {
  std::vector<bool> held(placement.num_experts());
  const auto logical = placement.logical(layer);
  for (const int rank : ranks) {
    for (int slot = placement.first_slot(rank); slot < placement.first_slot(rank + 1); ++slot) {
      held[logical[slot]] = true;
    }
  }
  return held;
}

// [expert_parts] which parts of experts these ranks hold.
std::vector<bool> held_parts(int expert_parts, std::span<const int> ranks) {
  std::vector<bool> held(expert_parts);
  for (const int rank : ranks) held[rank % expert_parts] = true;
  return held;
}

void check_placement(const Placement& placement, const ModelConfig& config) {
  if (placement.num_layers() != num_moe_layers(config) ||
      placement.num_experts() != config.router.num_experts) {
    throw InvalidArgument(cat("the placement is for ", placement.num_layers(), " MoE layers of ",
                              placement.num_experts(), " experts, the model has ",
                              num_moe_layers(config), " of ", config.router.num_experts));
  }
}

}  // namespace

int num_moe_layers(const ModelConfig& config) {
  return static_cast<int>(std::count(config.is_moe_layer.begin(), config.is_moe_layer.end(), true));
}

std::vector<int> moe_layer_ids(const ModelConfig& config) {
  std::vector<int> ids;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.is_moe_layer[layer]) ids.push_back(layer);
  }
  return ids;
}

DecoderWeights::DecoderWeights(const SafeTensors& tensors, const ModelConfig& config, DType dtype,
                               WeightFormat expert_format)
    : config_(config), dtype_(dtype), expert_format_(expert_format), tensors_(tensors) {}

DecoderWeights::~DecoderWeights() = default;

std::shared_ptr<const DecoderWeights> DecoderWeights::load(const SafeTensors& tensors,
                                                           const ModelConfig& config,
                                                           const DecoderFormats& formats,
                                                           const Placement& placement,
                                                           std::span<const int> ranks,
                                                           RoutedExperts routed, int expert_parts) {
  if (expert_parts < 1 || (expert_parts > 1 && routed == RoutedExperts::kInSlots)) {
    throw InvalidArgument(cat("weights of experts in ", expert_parts, " parts",
                              expert_parts < 1 ? ""
                                               : " can't be kept in slots; experts that move "
                                                 "must be whole"));
  }
  const DType dtype = formats.dtype;
  const std::optional<WeightFormat>& experts = formats.experts;
  check_config(config, dtype);
  check_placement(placement, config);
  std::vector<int> all_ranks(placement.num_ranks());
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  if (ranks.empty()) ranks = all_ranks;

  WeightFinder::Names found;
  const Reader reader(tensors, config, formats, found);
  const std::vector<MoeTensors> moe_tensors = find_all_moe_tensors(tensors, config, &found);
  const WeightFormat expert_format = experts ? *experts : common_format(config, moe_tensors, dtype);
  if (!experts) {
    for (const MoeTensors& layer : moe_tensors)
      check_rounding(config, layer.expert_groups, expert_format);
  }
  std::shared_ptr<DecoderWeights> weights(
      new DecoderWeights(tensors, config, dtype, expert_format));
  weights->expert_parts_ = expert_parts;
  const std::string& prefix = config.tensor_prefix;
  int moe_layer = 0;
  for (int l = 0; l < config.num_hidden_layers; ++l) {
    const std::string at = cat(prefix, "layers.", l, ".");
    LayerWeights layer;
    layer.attention_norm = reader.vector(at + "input_layernorm.weight", config.hidden_size);
    layer.feed_forward_norm =
        reader.vector(at + "post_attention_layernorm.weight", config.hidden_size);
    reader.attention(at + "self_attn.", layer);
    if (config.is_moe_layer[l]) {
      layer.moe_layer = moe_layer;
      const std::span<const int> packed_for =
          routed == RoutedExperts::kShared ? ranks : std::span<const int>();
      reader.moe(moe_tensors[moe_layer], held_experts(placement, moe_layer, packed_for),
                 held_parts(expert_parts, ranks), expert_format, experts, layer);
      ++moe_layer;
    } else {
      layer.dense = reader.dense(at + "mlp.");
    }
    weights->layers_.push_back(std::move(layer));
  }

  const std::array<int64_t, 2> vocabulary = {config.vocab_size, config.hidden_size};
  weights->embedding_ = reader.weights().plain(prefix + "embed_tokens.weight", vocabulary);
  weights->final_norm_ = reader.vector(prefix + "norm.weight", config.hidden_size);
  const MatrixSource head =
      config.tie_word_embeddings
          ? tied_head(tensors, prefix + "embed_tokens.weight", found)
          : reader.weights().matrix("lm_head", config.vocab_size, config.hidden_size);
  weights->head_ = naming(
      "lm_head", [&] { return Linear(head, VectorSource{}, formats.linear.value_or(dtype)); });
  refuse_other_tensors(tensors, config, found);
  return weights;
}

size_t DecoderWeights::expert_bytes() const {
  for (const LayerWeights& layer : layers_) {
    for (const auto& mlp : layer.experts) {
      if (mlp) return mlp->bytes();
    }
  }
  return 0;
}

std::unique_ptr<ExpertSlots> DecoderWeights::expert_slots(const Placement& placement,
                                                          Communicator& comm, int spares) const {
  check_placement(placement, config_);
  if (placement.num_ranks() != comm.size()) {
    throw InvalidArgument(
        cat("the placement is for ", placement.num_ranks(), " ranks, there are ", comm.size()));
  }
  const std::vector<MoeTensors> tensors = find_all_moe_tensors(tensors_, config_);
  const int first = placement.first_slot(comm.rank());
  const auto source = [&](int layer, int slot) {
    const int32_t logical = placement.logical(layer)[first + slot];
    const MlpSource& expert = tensors[layer].experts[logical];
    return ExpertSlots::Expert{naming(expert_name(tensors_, tensors[layer], logical),
                                      [&] {
                                        return std::make_shared<const Mlp>(
                                            expert, config_.activation, expert_format_);
                                      }),
                               logical};
  };
  return std::make_unique<ExpertSlots>(placement.num_layers(), placement.slots_of_rank(comm.rank()),
                                       spares, source, comm);
}

size_t DecoderWeights::bytes() const {
  size_t total = head_.bytes();
  for (const LayerWeights& layer : layers_) {
    total += layer.q.bytes() + layer.k.bytes() + layer.v.bytes() + layer.o.bytes();
    for (const auto& mlp : layer.experts) total += mlp ? mlp->bytes() : 0;
    for (const auto& mlp : layer.shared) total += mlp ? mlp->bytes() : 0;
    total += layer.dense ? layer.dense->bytes() : 0;
    for (const auto& linear : {layer.gate, layer.shared_gate})
      total += linear ? linear->bytes() : 0;
  }
  return total;
}

}  // namespace trimtab
