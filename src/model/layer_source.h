// SPDX-License-Identifier: Apache-2.0
// Where the weights of a decoder come from, one layer after the other: a checkpoint, whose tensors
// are packed here, or a packed model, whose files are mapped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/decoder_weights.h"
#include "trimtab/checkpoint.h"

namespace trimtab {

// Gets the size of each piece of weights once it is ready.
using PackedBytes = std::function<void(size_t)>;

// Used by one thread. All functions throw as DecoderWeights::load() does.
class LayerSource {
 public:
  virtual ~LayerSource() = default;
  // The format of the routed experts.
  virtual WeightFormat expert_format() const = 0;
  // Layer l of the model, without its moe_layer. experts: [num_experts] the logical experts that
  // are wanted; parts: [expert parts] which parts of each.
  virtual LayerWeights layer(int l, const std::vector<bool>& experts,
                             const std::vector<bool>& parts) = 0;
  // One routed expert of layer l, whole.
  virtual std::shared_ptr<const Mlp> expert(int l, int64_t expert) = 0;
  virtual TensorView embedding() = 0;  // [vocab_size, hidden_size], as in the checkpoint
  virtual std::vector<float> final_norm() = 0;
  virtual Linear head() = 0;
  // Throws FormatError for tensors of the model that nothing above has read.
  virtual void finish() = 0;
};

// All arguments outlive what is returned. team: packs; null: the calling thread does. outline:
// LoadOptions::outline. Both throw InvalidArgument for models that the decoder does not know.
std::unique_ptr<LayerSource> checkpoint_layers(const SafeTensors& tensors,
                                               const ModelConfig& config,
                                               const DecoderFormats& formats, PackedBytes packed,
                                               Team* team, bool outline = false);
// The same for whatever the tensors are, those of a checkpoint or of a packed model.
std::unique_ptr<LayerSource> layers_of(const SafeTensors& tensors, const ModelConfig& config,
                                       const DecoderFormats& formats, PackedBytes packed,
                                       Team* team, bool outline = false);

// The size of the packed weights of a layer.
size_t packed_bytes(const LayerWeights& layer);

}  // namespace trimtab
