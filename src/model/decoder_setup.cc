// SPDX-License-Identifier: Apache-2.0
// Construction of a decoder: its dispatcher, its MoE layers and the memory of its steps.
#include <algorithm>
#include <optional>

#include "attention/attention.h"
#include "base/cat.h"
#include "model/decoder_rows.h"
#include "model/decoder_weights.h"
#include "model/rope.h"
#include "trimtab/dispatch_choice.h"
#include "trimtab/error.h"
#include "trimtab/measure_cost.h"
#include "trimtab/require_equal.h"

namespace trimtab {

namespace {

// Throws when the slots do not hold what the placement says.
void check_slots(const ExpertSlots& slots, const Placement& placement, int rank) {
  if (slots.num_layers() != placement.num_layers() ||
      slots.num_slots() != placement.slots_of_rank(rank)) {
    throw InvalidArgument(cat("there are ", slots.num_layers(), " x ", slots.num_slots(),
                              " expert slots on rank ", rank, ", the placement has ",
                              placement.num_layers(), " x ", placement.slots_of_rank(rank)));
  }
  for (int l = 0; l < slots.num_layers(); ++l) {
    for (int s = 0; s < slots.num_slots(); ++s) {
      const int slot = placement.first_slot(rank) + s;
      const int32_t wanted = placement.logical(l)[slot];
      if (slots.logical(l, s) != wanted) {
        throw InvalidArgument(cat("slot ", slot, " of MoE layer ", l, " holds expert ",
                                  slots.logical(l, s), ", the placement has ", wanted));
      }
    }
  }
}

// Ranks that differ here would send each other rows that the receiver reads as others, and write
// over its memory.
void require_same_decoder(Communicator& comm, const DecoderWeights& weights,
                          const Placement& placement, const DecoderOptions& options) {
  const ModelConfig& model = weights.config();
  uint64_t slots = digest_of(std::as_bytes(placement.first_slots()));
  for (int layer = 0; layer < placement.num_layers(); ++layer)
    slots = digest_of(std::as_bytes(placement.logical(layer)), slots);
  require_equal(
      comm,
      std::vector<NamedDigest>{
          named_value("the model",
                      cat(model.model_type, ", ", model.num_hidden_layers, " layers of ",
                          model.hidden_size, ", top-", model.router.top_k, " of ",
                          model.router.num_experts, " experts of ", model.moe_intermediate_size)),
          named_value("the dtype of the weights", std::string(name(weights.dtype()))),
          named_value("the format of the linear maps", name(weights.linear_format())),
          named_value("the format of the experts", name(weights.expert_format())),
          named_value("DecoderOptions::dispatcher", options.dispatcher),
          named_value("DecoderOptions::layout",
                      options.layout ? name(*options.layout) : std::string("none")),
          named_value("DecoderOptions::max_tokens", cat(options.max_tokens)),
          named_value("DecoderOptions::row_budget", cat(options.row_budget)),
          named_value("DecoderOptions::wire",
                      options.wire ? std::string(name(*options.wire)) : std::string("none")),
          named_value("DecoderOptions::force_balance", cat(options.force_balance)),
          named_value("DecoderOptions::overlap", cat(options.overlap)),
          named_value("LoadOptions::outline", cat(weights.is_outline())),
          named_value("DecoderOptions::split", std::string(name(options.split))),
          named_value("DecoderOptions::measure_cost_seconds", cat(options.measure_cost_seconds)),
          {"DecoderOptions::cost", options.cost ? options.cost->fingerprint() : 0, {}},
          {"the placement", slots, {}}});
}

// The router for profile runs.
std::shared_ptr<const Router> forced(const Router& router) {
  RouterConfig config = router.config();
  config.force_balance = true;
  return std::make_shared<const Router>(std::move(config));
}

// Throws where the parts of experts are not what the layout wants.
void check_parts(const ParallelLayout& layout, const DecoderWeights& weights,
                 const Placement& placement, const DecoderOptions& options, bool in_slots) {
  if (weights.expert_parts() != layout.expert_parts()) {
    throw InvalidArgument(cat("the weights have experts in ", weights.expert_parts(),
                              " parts, the layout (", name(layout), ") wants ",
                              layout.expert_parts()));
  }
  if (!layout.sums_parts()) return;
  if (options.dispatcher != "auto" || options.split != SplitRule::kStatic) {
    throw InvalidArgument(
        cat("layout ", name(layout), ": its ranks sum parts; that takes dispatcher auto, not ",
            options.dispatcher, ", and split rule static, not ", name(options.split)));
  }
  if (options.wire && *options.wire != DType::kF32) {
    throw InvalidArgument(cat("layout ", name(layout),
                              ": its ranks sum parts, which travel as F32, not as ",
                              name(*options.wire)));
  }
  if (!layout.ep && in_slots)
    throw InvalidArgument(cat("layout ", name(layout), ": parts of experts can't move"));
  check_placement(layout, placement);
}

// Ranks that differ must find out before they make groups.
LayoutGroups make_groups_of_decoder(Communicator& comm, const DecoderWeights& weights,
                                    const Placement& placement, const DecoderOptions& options,
                                    const ExpertSlots* slots) {
  require_same_decoder(comm, weights, placement, options);
  const ParallelLayout layout = options.layout.value_or(data_parallel(comm.size()));
  check_layout(layout, comm.size());
  check_parts(layout, weights, placement, options, slots != nullptr);
  return make_layout_groups(layout, comm);
}

}  // namespace

Decoder::Decoder(std::shared_ptr<const DecoderWeights> weights, const Placement& placement,
                 Communicator& comm, const DecoderOptions& options, const ExpertSlots* slots)
    : weights_(std::move(weights)),
      options_(options),
      placement_(placement),
      layout_(options.layout.value_or(data_parallel(comm.size()))),
      comm_(comm),
      layout_groups_(make_groups_of_decoder(comm, *weights_, placement, options, slots)),
      experts_comm_(layout_groups_.experts ? *layout_groups_.experts : comm),
      dispatcher_(make_dispatcher(comm)),
      moe_layers_(make_moe_layers(comm, slots)),
      attention_(std::make_unique<const Attention>(attention_kernels(kernel_isa()),
                                                   config().head_dim, options.threads)),
      team_(weights_->is_outline() ? 1 : options.threads),
      workspace_bytes_(needed_workspace()),
      workspace_(weights_->is_outline() ? Buffer() : comm.allocate(workspace_bytes_)),
      owned_groups_(dispatcher_->make_groups(experts_comm_)),
      groups_(pointers_to(owned_groups_)),
      lane_{experts_comm_, workspace_, team_, groups_, options.trace},
      capture_([this](int layer, int64_t first_token, int top_k, std::span<const int32_t> ids) {
        const int64_t first = first_token - first_routed_;
        if (layout_groups_.tokens) {
          std::ranges::copy(ids, slice_routes_.begin() + first * top_k);
        } else {
          keep_routes(layer, first, ids);
        }
      }) {
  if (options.overlap) {
    std::unique_ptr<Communicator> order = experts_comm_.duplicate();
    Buffer memory;
    if (!weights_->is_outline()) memory = order->allocate(needed_by_second_lane());
    second_lane_ = std::make_unique<SecondLane>(std::move(order), *dispatcher_, std::move(memory),
                                                team_, options.trace);
  }
  Rope rope = make_rope(config());
  inverse_frequencies_ = std::move(rope.inverse_frequencies);
  rope_scale_ = rope.scale;
}

Decoder::~Decoder() = default;

std::shared_ptr<const Dispatcher> Decoder::make_dispatcher(Communicator& comm) const {
  if (placement_.num_ranks() != comm.size() ||
      placement_.num_layers() != num_moe_layers(config()) ||
      placement_.num_experts() != config().router.num_experts) {
    throw InvalidArgument(cat("the placement is for ", placement_.num_ranks(), " ranks, ",
                              placement_.num_layers(), " MoE layers of ", placement_.num_experts(),
                              " experts; there are ", comm.size(), ", ", num_moe_layers(config()),
                              " and ", config().router.num_experts));
  }
  if (options_.max_tokens < 1)
    throw InvalidArgument(cat("max_tokens must be at least 1, not ", options_.max_tokens));
  DispatchShape shape;
  shape.max_tokens = max_layer_tokens();
  shape.hidden = config().hidden_size;
  shape.top_k = config().router.top_k;
  shape.dtype = options_.wire.value_or(weights_->expert_format().rows());
  shape.results = options_.wire.value_or(DType::kF32);
  std::vector<int32_t> first_slots(placement_.first_slots().begin(),
                                   placement_.first_slots().end());
  // All ranks hold as many slots: those of the group that has all parts.
  first_slots.resize(experts_comm_.size() + 1);
  shape.first_slots = first_slots;
  if (layout_.sums_parts()) return make_summed_dispatcher(shape, experts_comm_.rank());
  shape.row_budget = row_budget_of(shape, options_.row_budget);
  if (options_.split != SplitRule::kStatic) shape.num_experts = placement_.num_experts();
  const DispatchRule rule = choose_dispatcher({.ranks = comm.size(),
                                               .hosts = 1 + *std::ranges::max_element(comm.hosts()),
                                               .shares_out = shape.num_experts > 0,
                                               .results = shape.results},
                                              options_.dispatcher);
  return trimtab::make_dispatcher(rule.dispatcher, shape, comm.rank(), comm.hosts());
}

// Of so many tokens of the sequences those that this rank takes through the MoE layers.
int64_t Decoder::own_tokens(int64_t tokens) const {
  if (!layout_groups_.tokens) return tokens;
  return token_slice(tokens, layout_.token_slices(), layout_groups_.tokens->rank()).count;
}

// The most tokens that this rank takes through a layer.
int64_t Decoder::max_layer_tokens() const {
  return token_slice(options_.max_tokens, layout_.token_slices(), 0).count;
}

// This rank's experts, out of the weights that all ranks of the process share.
std::shared_ptr<const Experts> Decoder::experts_of(const LayerWeights& w, int rank) const {
  std::vector<std::shared_ptr<const Mlp>> slots;
  for (int slot = placement_.first_slot(rank); slot < placement_.first_slot(rank + 1); ++slot) {
    const int32_t expert = placement_.logical(w.moe_layer)[slot];
    const int part = layout_.ep ? 0 : layout_.tp_rank(rank);
    slots.push_back(w.experts[part * placement_.num_experts() + expert]);
    if (!slots.back()) {
      throw InvalidArgument(cat("rank ", rank, " holds expert ", expert, " of MoE layer ",
                                w.moe_layer, ", whose weights were not loaded"));
    }
  }
  return make_grouped_experts(std::move(slots), config().hidden_size, weights_->expert_format(),
                              dispatcher_->format());
}

void Decoder::measure_cost(const Experts& experts, Communicator& comm) {
  std::optional<CostModel> mine;
  if (comm.rank() == 0 && weights_->is_outline()) {
    mine = CostModel::of_rows();  // any will do, as nothing is shared out
  } else if (comm.rank() == 0) {
    Team team(options_.threads);
    mine = trimtab::measure_cost(experts, team, {.seconds = options_.measure_cost_seconds});
  }
  options_.cost = std::make_shared<const CostModel>(broadcast_cost(comm, mine ? &*mine : nullptr));
}

std::vector<MoeLayer> Decoder::make_moe_layers(Communicator& comm, const ExpertSlots* slots) {
  const int rank = comm.rank();
  if (slots != nullptr) check_slots(*slots, placement_, rank);
  std::vector<MoeLayer> layers;
  const Placement of_lane =
      layout_.ep ? placement_
                 : placement_of_layout({.tp = layout_.tp, .ep = false}, placement_.num_layers(),
                                       placement_.num_experts());
  for (const LayerWeights& w : weights_->layers_) {
    if (w.dense) continue;
    MoeLayer::Parts parts;
    parts.gate = w.gate;
    parts.router = options_.force_balance ? forced(*w.router) : w.router;
    parts.replicas =
        std::make_shared<const SplitTable>(of_lane, w.moe_layer, experts_comm_.hosts());
    parts.split = options_.split;
    parts.dispatcher = dispatcher_;
    parts.experts =
        slots != nullptr ? slots->experts(w.moe_layer, dispatcher_->format()) : experts_of(w, rank);
    if (layers.empty() && options_.measure_cost_seconds > 0) measure_cost(*parts.experts, comm);
    parts.cost = options_.cost;
    if (!w.shared.empty()) {
      parts.shared.emplace(w.shared[layout_.ep ? 0 : layout_.tp_rank(rank)], w.shared_gate);
      parts.shared_in_parts = !layout_.ep;
    }
    parts.layer = w.moe_layer;
    layers.emplace_back(std::move(parts));
  }
  return layers;
}

void Decoder::replace_layer(int moe_layer, std::shared_ptr<const Experts> experts,
                            std::shared_ptr<const SplitTable> replicas) {
  if (moe_layer < 0 || moe_layer >= std::ssize(moe_layers_)) {
    throw InvalidArgument(cat("MoE layer ", moe_layer, " of ", moe_layers_.size()));
  }
  moe_layers_[moe_layer].replace(std::move(experts), std::move(replicas));
}

void Decoder::replace_cost(const std::shared_ptr<const CostModel>& cost) {
  for (MoeLayer& layer : moe_layers_) layer.replace_cost(cost);
  options_.cost = cost;
}

size_t Decoder::linear_scratch_bytes(int64_t tokens) const {
  size_t most = weights_->head_.scratch_bytes(tokens);
  for (const LayerWeights& w : weights_->layers_) {
    for (const Linear* linear : {&w.q, &w.k, &w.v, &w.o})
      most = std::max(most, linear->scratch_bytes(tokens));
  }
  return most;
}

size_t Decoder::workspace_bytes() const {
  if (weights_->is_outline())
    return workspace_bytes_ + (options_.overlap ? needed_by_second_lane() : 0);
  return workspace_.capacity() + (second_lane_ ? second_lane_->workspace.capacity() : 0);
}

// Of a call with half of the tokens.
size_t Decoder::needed_by_second_lane() const {
  size_t most = 0;
  for (const MoeLayer& layer : moe_layers_)
    most = std::max(most, layer.workspace_bytes((max_layer_tokens() + 1) / 2));
  return most;
}

// The memory that take_activations(), picks to be replayed and the largest feed-forward block take.
size_t Decoder::needed_workspace() const {
  const ModelConfig& c = config();
  const int64_t tokens = options_.max_tokens;
  const int64_t floats =
      int64_t{3} * c.hidden_size + 2 * query_cols(c) + 2 * key_cols(c) + c.head_dim;
  const size_t row = cells(floats, sizeof(float)) + cells(widest_input(c), sizeof(bf16_t)) +
                     sizeof(Place) + cells(tiles_of_token(c), sizeof(QueryTile)) +
                     cells(c.router.top_k, sizeof(int32_t));
  constexpr size_t kBlocks = 15;
  size_t block = 0;
  for (const MoeLayer& layer : moe_layers_)
    block = std::max(block, layer.workspace_bytes(max_layer_tokens()));
  if (layout_groups_.tokens) {
    // The slice's output and routes, the routes of all and what each rank of the group sent.
    const int64_t slice = max_layer_tokens();
    block += Workspace::padded(shape_bytes(DType::kF32, slice, c.hidden_size)) +
             Workspace::padded(shape_bytes(DType::kI32, slice, c.router.top_k)) +
             Workspace::padded(shape_bytes(DType::kI32, tokens, c.router.top_k)) +
             2 * Workspace::padded(cells(layout_.token_slices(), sizeof(int64_t)));
  }
  for (const LayerWeights& w : weights_->layers_) {
    if (!w.dense) continue;
    const size_t act = cells(w.dense->intermediate(), tokens, sizeof(float));
    block = std::max(block, Workspace::padded(act) +
                                Workspace::padded(w.dense->scratch_bytes(options_.max_tokens)));
  }
  return cells(tokens, row) + linear_scratch_bytes(tokens) + attention_->workspace_bytes() +
         kBlocks * Workspace::padded(1) + block;
}

}  // namespace trimtab
