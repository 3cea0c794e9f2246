// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_weights.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "model/layer_source.h"
#include "trimtab/error.h"

namespace trimtab {

namespace {

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

std::vector<int> all_ranks(const Placement& placement) {
  std::vector<int> ranks(placement.num_ranks());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

size_t bytes_of(const std::shared_ptr<const Mlp>& mlp) {
  return mlp ? mlp->bytes() : 0;
}

size_t bytes_of_experts(const LayerWeights& layer) {
  size_t total = 0;
  for (const auto& mlp : layer.experts) total += bytes_of(mlp);
  return total;
}

// Of all but the experts, routed and shared.
size_t dense_bytes(const LayerWeights& layer) {
  size_t total = layer.q.bytes() + layer.k.bytes() + layer.v.bytes() + layer.o.bytes();
  total += bytes_of(layer.dense);
  for (const auto& linear : {layer.gate, layer.shared_gate}) total += linear ? linear->bytes() : 0;
  return total;
}

void check_ranks(const Placement& placement, const Communicator& comm) {
  if (placement.num_ranks() == comm.size()) return;
  throw InvalidArgument(
      cat("the placement is for ", placement.num_ranks(), " ranks, there are ", comm.size()));
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
                                                           const LoadOptions& options) {
  const int parts = options.expert_parts;
  if (parts < 1 || (parts > 1 && options.routed == RoutedExperts::kInSlots)) {
    throw InvalidArgument(cat("weights of experts in ", parts, " parts",
                              parts < 1 ? ""
                                        : " can't be kept in slots; experts that move must be "
                                          "whole"));
  }
  LoadProgress progress{.num_layers = config.num_hidden_layers};
  Team team(options.threads);
  const auto source = layers_of(
      tensors, config, formats,
      [&](size_t bytes) {
        progress.bytes += bytes;
        if (options.progress) options.progress(progress);
      },
      &team, options.outline);
  check_placement(placement, config);
  std::shared_ptr<DecoderWeights> weights(
      new DecoderWeights(tensors, config, formats.dtype, source->expert_format()));
  weights->expert_parts_ = parts;
  weights->outline_ = options.outline;
  weights->read(*source, placement, options, progress);
  return weights;
}

void DecoderWeights::read(LayerSource& source, const Placement& placement,
                          const LoadOptions& options, LoadProgress& progress) {
  std::vector<int> ranks(options.ranks.begin(), options.ranks.end());
  if (ranks.empty()) ranks = all_ranks(placement);
  const std::vector<bool> parts = held_parts(expert_parts_, ranks);
  if (options.routed == RoutedExperts::kInSlots) ranks.clear();
  int moe_layer = 0;
  for (int l = 0; l < config_.num_hidden_layers; ++l) {
    std::vector<bool> held;
    if (config_.is_moe_layer[l]) held = held_experts(placement, moe_layer, ranks);
    LayerWeights layer = source.layer(l, held, parts);
    if (config_.is_moe_layer[l]) layer.moe_layer = moe_layer++;
    layers_.push_back(std::move(layer));
    ++progress.layers;
  }
  embedding_ = source.embedding();
  final_norm_ = source.final_norm();
  head_ = source.head();
  source.finish();
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
                                                          Communicator& comm, int spares,
                                                          int threads) const {
  check_placement(placement, config_);
  check_ranks(placement, comm);
  const DecoderFormats formats(dtype_, expert_format_, linear_format());
  Team team(threads);
  const auto from = layers_of(tensors_, config_, formats, {}, &team);
  const std::vector<int> numbers = moe_layer_ids(config_);
  const int first = placement.first_slot(comm.rank());
  const auto source = [&](int layer, int slot) {
    const int32_t logical = placement.logical(layer)[first + slot];
    return ExpertSlots::Expert{from->expert(numbers[layer], logical), logical};
  };
  auto slots = std::make_unique<ExpertSlots>(
      placement.num_layers(), placement.slots_of_rank(comm.rank()), spares, source, comm);
  tensors_.release_pages();
  return slots;
}

ExpertSlots::Sizes DecoderWeights::expert_slots_sizes(const Placement& placement,
                                                      Communicator& comm, int spares) const {
  check_placement(placement, config_);
  check_ranks(placement, comm);
  const int slots = placement.slots_of_rank(comm.rank());
  std::shared_ptr<const Mlp> first;
  for (const LayerWeights& layer : layers_) {
    if (layer.dense || slots == 0) continue;
    first = layer.experts[placement.logical(0)[placement.first_slot(comm.rank())]];
    if (!first) throw InvalidArgument("the experts of the slots were not loaded");
    break;
  }
  return ExpertSlots::sizes(placement.num_layers(), slots, spares, first.get(), comm);
}

size_t packed_bytes(const LayerWeights& layer) {
  size_t total = dense_bytes(layer) + bytes_of_experts(layer);
  for (const auto& mlp : layer.shared) total += bytes_of(mlp);
  return total;
}

size_t DecoderWeights::bytes_of(const Placement& placement, std::span<const int> ranks) const {
  check_placement(placement, config_);
  const std::vector<bool> parts = held_parts(expert_parts_, ranks);
  size_t total = head_.bytes();
  for (const LayerWeights& layer : layers_) {
    total += dense_bytes(layer);
    if (layer.dense) continue;
    const std::vector<bool> experts = held_experts(placement, layer.moe_layer, ranks);
    for (int part = 0; part < expert_parts_; ++part) {
      if (!parts[part]) continue;
      for (size_t e = 0; e < experts.size(); ++e) {
        if (experts[e]) total += trimtab::bytes_of(layer.experts[cells(part, experts.size()) + e]);
      }
      if (!layer.shared.empty()) total += trimtab::bytes_of(layer.shared[part]);
    }
  }
  return total;
}

WeightBytes DecoderWeights::bytes_by_use() const {
  WeightBytes bytes{.head = head_.bytes()};
  for (const LayerWeights& layer : layers_) {
    const size_t experts = bytes_of_experts(layer);
    bytes.routed += experts;
    bytes.others += packed_bytes(layer) - experts;
  }
  return bytes;
}

}  // namespace trimtab
