// SPDX-License-Identifier: Apache-2.0
// Reads the layers of a packed model, which are views of its mapped files.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/cat.h"
#include "experts/isa.h"
#include "experts/weights.h"
#include "files/safetensors_writer.h"
#include "model/layer_source.h"
#include "model/packed_format.h"
#include "trimtab/error.h"
#include "trimtab/packed_model.h"

namespace trimtab {

namespace {

FormatError missing(const std::string& file, const std::string& key) {
  return {file, -1, cat("the header has no '", key, "'", kPackAgain)};
}

// What every file of the model says, so that files of two models are not taken for one.
const std::string& fact(const SafeTensors& tensors, const std::string& key) {
  const auto found = tensors.metadata().find(key);
  if (found == tensors.metadata().end()) throw missing(tensors.path(), key);
  for (const auto& [path, metadata] : tensors.metadata_of_files()) {
    const auto own = metadata.find(key);
    if (own == metadata.end()) throw missing(path, key);
    if (own->second == found->second) continue;
    throw FormatError(path, -1,
                      cat("the header has the ", key, " ", own->second,
                          ", another file of the model has ", found->second, kPackAgain));
  }
  return found->second;
}

WeightFormat parse(const SafeTensors& tensors, const std::string& key, const std::string& text) {
  try {
    return parse_weight_format(text);
  } catch (const InvalidArgument& error) {
    throw FormatError(tensors.path(), -1, cat("'", key, "': ", error.what()));
  }
}
WeightFormat format_fact(const SafeTensors& tensors, const std::string& key) {
  return parse(tensors, key, fact(tensors, key));
}
// The file of a layer alone says it.
WeightFormat format_of_shared(const SafeTensors& tensors, int layer) {
  const std::string key = shared_key(layer);
  const auto found = tensors.metadata().find(key);
  if (found == tensors.metadata().end()) throw missing(tensors.path(), key);
  return parse(tensors, key, found->second);
}

void check_model(const SafeTensors& tensors, const ModelConfig& config) {
  for (const auto& [key, value] : model_facts(config)) {
    const std::string& packed = fact(tensors, key);
    if (packed == value) continue;
    throw FormatError(tensors.path(), -1,
                      cat("was packed for a ", key, " of ", packed, ", but config.json says ",
                          value, kPackAgain));
  }
}

void check_asked(const char* what, WeightFormat asked, WeightFormat packed) {
  if (asked == packed) return;
  throw InvalidArgument(cat("the model is packed with ", what, " ", name(packed), ", not ",
                            name(asked), "; pack the original model in ", name(asked),
                            ", or don't ask for a format"));
}

class PackedLayers : public LayerSource {
 public:
  PackedLayers(const SafeTensors& tensors, const ModelConfig& config, DecoderFormats packed,
               PackedBytes tell, bool outline)
      : tensors_(std::make_shared<SafeTensors>(tensors)),
        config_(config),
        formats_(packed),
        tell_(std::move(tell)),
        outline_(outline) {
    check_model(tensors, config);
  }

  WeightFormat expert_format() const override { return *formats_.experts; }

  LayerWeights layer(int l, const std::vector<bool>& experts,
                     const std::vector<bool>& parts) override {
    if (parts.size() > 1) {
      throw InvalidArgument(cat("a packed model has its experts whole, not in ", parts.size(),
                                " parts; take the original model for that"));
    }
    const std::string at = layer_name(l);
    const std::array<AttentionMap, 4> maps = attention_maps(config_);
    LayerWeights layer;
    for (const LayerNorm& norm : layer_norms(config_))
      layer.*norm.values = floats(at + norm.name, norm.size);
    for (const AttentionMap& map : maps) {
      Linear linear = this->linear(at + map.name, map.in, map.out, *formats_.linear, map.has_bias);
      tell(bring_in(linear.packed()));
      layer.*map.linear = std::move(linear);
    }
    if (config_.is_moe_layer[l]) {
      moe(l, at, experts, parts[0], layer);
    } else {
      layer.dense = mlp(at + "dense", config_.intermediate_size, *formats_.linear);
      bring_in(*layer.dense);
    }
    return layer;
  }

  std::shared_ptr<const Mlp> expert(int l, int64_t expert) override {
    auto found = mlp(expert_name(l, expert), config_.moe_intermediate_size, expert_format());
    // Whoever asks for experts one by one copies them. Pages of those before are given back.
    constexpr size_t kMostMapped = size_t{16} << 20;
    unreleased_ += found->bytes();
    if (unreleased_ >= kMostMapped) {
      tensors_->release_pages();
      unreleased_ = 0;
    }
    return found;
  }

  TensorView embedding() override {
    return tensors_->at("embedding",
                        std::array<int64_t, 2>{config_.vocab_size, config_.hidden_size});
  }
  std::vector<float> final_norm() override { return floats("final_norm", config_.hidden_size); }
  Linear head() override {
    Linear head = linear("head", config_.hidden_size, config_.vocab_size, *formats_.linear, false);
    tell(bring_in(head.packed()));
    return head;
  }
  void finish() override {}

 private:
  static std::string expert_name(int l, int64_t expert) {
    return cat(layer_name(l), "experts.", expert);
  }

  void moe(int l, const std::string& at, const std::vector<bool>& experts, bool with_shared,
           LayerWeights& layer) {
    const RouterConfig& router = config_.router;
    layer.gate = std::make_shared<const Linear>(
        linear(at + "gate", config_.hidden_size, router.num_experts, DType::kF32, false));
    layer.router = std::make_shared<const Router>(router);
    layer.experts.resize(experts.size());
    for (size_t e = 0; e < experts.size(); ++e) {
      if (!experts[e]) continue;
      layer.experts[e] = mlp(expert_name(l, static_cast<int64_t>(e)), config_.moe_intermediate_size,
                             expert_format());
      bring_in(*layer.experts[e]);
    }
    if (config_.shared_intermediate_size > 0 && with_shared) {
      layer.shared.push_back(
          mlp(at + "shared", config_.shared_intermediate_size, format_of_shared(*tensors_, l)));
      bring_in(*layer.shared[0]);
    }
    if (config_.shared_expert_gate) {
      layer.shared_gate = std::make_shared<const Linear>(
          linear(at + "shared_gate", config_.hidden_size, 1, DType::kF32, false));
    }
  }

  // `bytes` bytes of a tensor that fills whole pages.
  std::span<const std::byte> bytes_of(const std::string& name, size_t bytes) const {
    const auto pages = static_cast<int64_t>(whole_pages(bytes));
    const TensorView& tensor = tensors_->at(name, std::array{pages});
    if (tensor.dtype != DType::kU8)
      throw tensors_->bad_tensor(name, cat("holds ", trimtab::name(tensor.dtype), ", not U8"));
    // Tensors end at whole pages; the first one begins where the header ends.
    if (reinterpret_cast<uintptr_t>(tensor.data.data()) % kFilePage != 0)
      throw tensors_->bad_tensor(name, "does not begin on a page");
    return tensor.data.first(bytes);
  }

  std::vector<float> floats(const std::string& name, int64_t size) const {
    std::vector<float> values(size);
    if (size == 0) return values;
    const auto bytes = bytes_of(name, values.size() * sizeof(float));
    if (outline_) return values;
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  PackedWeights weights(const std::string& name, int64_t in, int64_t out, WeightFormat format,
                        bool gated) const {
    PackedWeights weights = describe_weights(in, out, format, gated, nullptr);
    const PartBytes sizes = part_bytes(weights);
    for (const PackedPart& part : kPackedParts) {
      const std::string tensor = cat(name, ".", part.name);
      const size_t size = sizes.*part.bytes;
      if (size == 0 || (part.optional && !tensors_->contains(tensor))) continue;
      // Kernels only read. A Buffer also serves those who fill it, so it points to mutable bytes.
      auto* const data = const_cast<std::byte*>(bytes_of(tensor, size).data());
      weights.*part.buffer = Buffer(data, size, tensors_);
    }
    return weights;
  }

  Linear linear(const std::string& name, int64_t in, int64_t out, WeightFormat format,
                bool has_bias) const {
    PackedWeights found = weights(name, in, out, format, false);
    if ((found.bias.bytes() > 0) != has_bias) {
      throw tensors_->bad_tensor(cat(name, ".bias"),
                                 has_bias ? "is missing" : "has no place in what config.json says");
    }
    return Linear(std::move(found));
  }

  std::shared_ptr<const Mlp> mlp(const std::string& name, int64_t width,
                                 WeightFormat format) const {
    return std::make_shared<const Mlp>(
        weights(name + ".gate_up", config_.hidden_size, width, format, true),
        weights(name + ".down", width, config_.hidden_size, format, false), config_.activation);
  }

  size_t bring_in(const PackedWeights& weights) const {
    if (outline_) return weights.bytes();
    for (const PackedPart& part : kPackedParts) {
      const Buffer& buffer = weights.*part.buffer;
      SafeTensors::bring_in({buffer.data(), buffer.bytes()});
    }
    return weights.bytes();
  }
  void bring_in(const Mlp& mlp) const {
    tell(bring_in(mlp.gate_up_packed()) + bring_in(mlp.down_packed()));
  }
  void tell(size_t bytes) const {
    if (tell_) tell_(bytes);
  }

  const std::shared_ptr<SafeTensors> tensors_;  // owns what the weights are views of
  const ModelConfig& config_;
  const DecoderFormats formats_;  // all of them given
  const PackedBytes tell_;
  const bool outline_;  // whether the mapped files are left unread
  size_t unreleased_ = 0;
};

}  // namespace

std::optional<DecoderFormats> packed_formats(const SafeTensors& tensors) {
  if (!tensors.metadata().contains(kVersionKey)) return std::nullopt;
  if (const std::string& version = fact(tensors, kVersionKey); version != kPackedVersion) {
    throw FormatError(tensors.path(), -1,
                      cat("is a packed model of version ", version, "; this build reads version ",
                          kPackedVersion, kPackAgain));
  }
  const std::string columns = cat(chosen_kernels().width);
  const std::string& kernels = fact(tensors, kKernelsKey);
  if (const std::string& packed = fact(tensors, kColumnsKey); packed != columns) {
    throw FormatError(tensors.path(), -1,
                      cat("is packed in panels of ", packed, " columns (for ", kernels,
                          "); the kernels here, ", kernel_isa(), ", read panels of ", columns,
                          "; pack the original model again on this machine (trimtab pack)"));
  }
  const WeightFormat dtype = format_fact(tensors, kDTypeKey);
  if (dtype != Scheme::kF32 && dtype != Scheme::kBF16)
    throw FormatError(tensors.path(), -1, cat("'", kDTypeKey, "' is ", name(dtype)));
  return DecoderFormats(dtype == Scheme::kF32 ? DType::kF32 : DType::kBF16,
                        format_fact(tensors, kExpertsKey), format_fact(tensors, kLinearKey));
}

std::unique_ptr<LayerSource> layers_of(const SafeTensors& tensors, const ModelConfig& config,
                                       const DecoderFormats& formats, PackedBytes packed,
                                       Team* team, bool outline) {
  const std::optional<DecoderFormats> own = packed_formats(tensors);
  if (!own) return checkpoint_layers(tensors, config, formats, std::move(packed), team, outline);
  check_asked("dtype", formats.dtype, own->dtype);
  check_asked("attention and head in", formats.linear.value_or(formats.dtype), *own->linear);
  if (formats.experts) check_asked("experts in", *formats.experts, *own->experts);
  return std::make_unique<PackedLayers>(tensors, config, *own, std::move(packed), outline);
}

}  // namespace trimtab
