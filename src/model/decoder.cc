// SPDX-License-Identifier: Apache-2.0
#include "trimtab/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "model/decoder_weights.h"
#include "model/row_ops.h"
#include "trimtab/dispatch_choice.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {

namespace {

int64_t query_cols(const ModelConfig& config) {
  return int64_t{config.num_attention_heads} * config.head_dim;
}
int64_t key_cols(const ModelConfig& config) {
  return int64_t{config.num_key_value_heads} * config.head_dim;
}
int64_t widest_input(const ModelConfig& config) {
  return std::max<int64_t>(config.hidden_size, query_cols(config));
}

int64_t wanted_logits(const Chunk& chunk) {
  const auto n = static_cast<int64_t>(chunk.tokens.size());
  if (chunk.logits == Chunk::Logits::kAll) return n;
  return chunk.logits == Chunk::Logits::kLast ? std::min<int64_t>(n, 1) : 0;
}

std::vector<float> inverse_frequencies(const ModelConfig& config) {
  std::vector<float> frequencies(config.head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / config.head_dim;
    frequencies[i] =
        static_cast<float>(1.0 / std::pow(static_cast<double>(config.rope_theta), exponent));
  }
  return frequencies;
}

void add(Rows to, ConstRows from) {
  for (int64_t r = 0; r < to.rows; ++r) {
    float* a = to.row_as<float>(r);
    const float* b = from.row_as<float>(r);
    for (int64_t i = 0; i < to.cols; ++i) a[i] += b[i];
  }
}

void norm_rows(ConstRows x, std::span<const float> weight, float eps, Rows out) {
  for (int64_t r = 0; r < x.rows; ++r)
    rms_norm(x.row_as<float>(r), weight, eps, out.row_as<float>(r));
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, int64_t capacity)
    : capacity_(capacity),
      num_layers_(config.num_hidden_layers),
      num_heads_(config.num_key_value_heads),
      head_dim_(config.head_dim) {
  if (capacity < 1) throw InvalidArgument(cat("a cache needs at least 1 position, not ", capacity));
  data_ = Buffer(cells(num_layers_, key_cols(config)) * 2 * static_cast<size_t>(capacity) *
                 sizeof(float));
}

float* KvCache::keys(int layer, int head) const {
  return data_.as<float>() + (int64_t{layer} * num_heads_ + head) * 2 * capacity_ * head_dim_;
}

float* KvCache::values(int layer, int head) const {
  return keys(layer, head) + capacity_ * head_dim_;
}

struct Decoder::Place {
  KvCache* cache;
  int64_t position;
};

// The rows of one step, all [tokens, ..] and f32 but for `rounded`.
struct Decoder::Activations {
  std::span<Place> places;
  std::span<float> sine, cosine;  // [tokens, head_dim / 2]
  Rows h;                         // [hidden] the residual stream
  Rows x, y;                      // [hidden] a block's normalised input and its output
  Rows q, k, v, attended;         // [heads * head_dim] of the queries or of the keys and values
  Rows rounded;                   // [widest_input] bf16
};

namespace {

// Do the slots hold what the placement says?
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

std::vector<Communicator*> pointers_to(const std::vector<std::unique_ptr<Communicator>>& groups) {
  std::vector<Communicator*> pointers;
  for (const auto& group : groups) pointers.push_back(group.get());
  return pointers;
}

}  // namespace

Decoder::Decoder(std::shared_ptr<const DecoderWeights> weights, const Placement& placement,
                 Communicator& comm, const DecoderOptions& options, const ExpertSlots* slots)
    : weights_(std::move(weights)),
      options_(options),
      placement_(placement),
      inverse_frequencies_(inverse_frequencies(config())),
      dispatcher_(make_dispatcher(comm)),
      moe_layers_(make_moe_layers(comm, slots)),
      team_(options.threads),
      workspace_(comm.allocate(workspace_bytes())),
      owned_groups_(dispatcher_->make_groups(comm)),
      groups_(pointers_to(owned_groups_)),
      lane_{comm, workspace_, team_, groups_, options.trace} {}

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
  shape.max_tokens = options_.max_tokens;
  shape.hidden = config().hidden_size;
  shape.top_k = config().router.top_k;
  shape.dtype = weights_->expert_format().rows();
  shape.first_slots = placement_.first_slots();
  if (options_.split != SplitRule::kStatic) shape.num_experts = placement_.num_experts();
  const DispatchRule rule = choose_dispatcher({.ranks = comm.size(),
                                               .hosts = 1 + *std::ranges::max_element(comm.hosts()),
                                               .shares_out = shape.num_experts > 0},
                                              options_.dispatcher);
  return trimtab::make_dispatcher(rule.dispatcher, shape, comm.rank(), comm.hosts());
}

// From the weights that all ranks of the process share.
std::shared_ptr<const Experts> Decoder::experts_of(const LayerWeights& w, int rank) const {
  std::vector<std::shared_ptr<const Mlp>> slots;
  for (int slot = placement_.first_slot(rank); slot < placement_.first_slot(rank + 1); ++slot) {
    const int32_t expert = placement_.logical(w.moe_layer)[slot];
    slots.push_back(w.experts[expert]);
    if (!slots.back()) {
      throw InvalidArgument(cat("rank ", rank, " holds expert ", expert, " of MoE layer ",
                                w.moe_layer, ", whose weights were not loaded"));
    }
  }
  return make_grouped_experts(std::move(slots), config().hidden_size, weights_->expert_format(),
                              dispatcher_->format());
}

std::vector<MoeLayer> Decoder::make_moe_layers(Communicator& comm, const ExpertSlots* slots) const {
  const int rank = comm.rank();
  if (slots != nullptr) check_slots(*slots, placement_, rank);
  std::vector<MoeLayer> layers;
  for (const LayerWeights& w : weights_->layers_) {
    if (w.dense) continue;
    MoeLayer::Parts parts;
    parts.gate = w.gate;
    parts.router = w.router;
    parts.replicas = std::make_shared<const SplitTable>(placement_, w.moe_layer, comm.hosts());
    parts.split = options_.split;
    parts.dispatcher = dispatcher_;
    parts.experts =
        slots != nullptr ? slots->experts(w.moe_layer, dispatcher_->format()) : experts_of(w, rank);
    if (w.shared) parts.shared.emplace(w.shared, w.shared_gate);
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

// What take_activations() and the hungriest feed-forward block take.
size_t Decoder::workspace_bytes() const {
  const ModelConfig& c = config();
  const auto tokens = static_cast<size_t>(options_.max_tokens);
  const auto floats =
      static_cast<size_t>(3 * c.hidden_size + 2 * query_cols(c) + 2 * key_cols(c) + c.head_dim);
  const size_t row = floats * sizeof(float) +
                     static_cast<size_t>(widest_input(c)) * sizeof(bf16_t) + sizeof(Place);
  constexpr size_t kBlocks = 11;
  size_t block = 0;
  for (const MoeLayer& layer : moe_layers_)
    block = std::max(block, layer.workspace_bytes(options_.max_tokens));
  for (const LayerWeights& w : weights_->layers_) {
    if (!w.dense) continue;
    const auto act = static_cast<size_t>(w.dense->intermediate()) * tokens * sizeof(float);
    block = std::max(block, Workspace::padded(act) +
                                Workspace::padded(w.dense->scratch_bytes(options_.max_tokens)));
  }
  return row * tokens + kBlocks * Workspace::padded(1) + block;
}

Decoder::Activations Decoder::take_activations(int64_t tokens) {
  const ModelConfig& c = config();
  const auto rows = [&](int64_t cols, DType dtype = DType::kF32) {
    return workspace_.take_rows(tokens, cols, dtype);
  };
  const auto n = static_cast<size_t>(tokens);
  Activations a;
  a.places = workspace_.take<Place>(n);
  a.sine = workspace_.take<float>(n * inverse_frequencies_.size());
  a.cosine = workspace_.take<float>(n * inverse_frequencies_.size());
  a.h = rows(c.hidden_size);
  a.x = rows(c.hidden_size);
  a.y = rows(c.hidden_size);
  a.q = rows(query_cols(c));
  a.k = rows(key_cols(c));
  a.v = rows(key_cols(c));
  a.attended = rows(query_cols(c));
  a.rounded = rows(widest_input(c), DType::kBF16);
  return a;
}

void Decoder::check(std::span<const Chunk> batch, Rows logits) const {
  const ModelConfig& c = config();
  int64_t tokens = 0, wanted = 0;
  for (const Chunk& chunk : batch) {
    if (chunk.cache == nullptr || chunk.cache->num_layers_ != c.num_hidden_layers ||
        chunk.cache->num_heads_ != c.num_key_value_heads || chunk.cache->head_dim_ != c.head_dim) {
      throw InvalidArgument("a chunk has no cache, or one of another model");
    }
    for (const int32_t id : chunk.tokens) {
      if (id < 0 || id >= c.vocab_size) {
        throw InvalidArgument(cat("token id ", id, " is not in [0, ", c.vocab_size, ")"));
      }
    }
    tokens += static_cast<int64_t>(chunk.tokens.size());
    wanted += wanted_logits(chunk);
  }
  if (tokens > options_.max_tokens) {
    throw InvalidArgument(
        cat("a step of ", tokens, " tokens; the decoder is made for ", options_.max_tokens));
  }
  if (logits.rows != wanted ||
      (wanted > 0 && (logits.cols != c.vocab_size || logits.dtype != DType::kF32))) {
    throw InvalidArgument(cat("logits are ", name(logits.dtype), " [", logits.rows, ", ",
                              logits.cols, "], the batch wants F32 [", wanted, ", ", c.vocab_size,
                              "]"));
  }
}

void Decoder::step(std::span<const Chunk> batch, Rows logits, LoadRecorder* recorder) {
  check(batch, logits);
  int64_t tokens = 0;
  for (const Chunk& chunk : batch) tokens += static_cast<int64_t>(chunk.tokens.size());

  TraceSteps whole(lane_.trace), part(lane_.trace);
  const size_t mark = workspace_.mark();
  const Activations a = take_activations(tokens);
  embed(batch, a);
  part.step("embedding");
  for (size_t l = 0; l < weights_->layers_.size(); ++l) {
    const LayerWeights& layer = weights_->layers_[l];
    const TraceArg number{"layer", static_cast<int64_t>(l)};
    if (tokens > 0) {
      attention(layer, static_cast<int>(l), a);
      part.step("attention", number);
    }
    feed_forward(layer, a, recorder);
    part.step(layer.dense ? "dense" : "moe", number);
  }
  head(batch, a, logits);
  part.step("head");
  workspace_.release(mark);
  whole.step("step", {"tokens", tokens});
}

// Embedding rows, places in the caches, and the angles of the rotary embedding.
void Decoder::embed(std::span<const Chunk> batch, const Activations& a) const {
  const MatrixSource embedding = matrix_source(weights_->embedding_);
  const size_t half = inverse_frequencies_.size();
  int64_t row = 0;
  for (const Chunk& chunk : batch) {
    for (const int32_t id : chunk.tokens) {
      if (chunk.cache->length_ >= chunk.cache->capacity_) {
        throw InvalidArgument(cat("a cache of ", chunk.cache->capacity_, " positions is full"));
      }
      const auto r = static_cast<size_t>(row);
      a.places[r] = {chunk.cache, chunk.cache->length_++};
      for (size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(a.places[r].position) * inverse_frequencies_[i];
        a.sine[r * half + i] = std::sin(angle);
        a.cosine[r * half + i] = std::cos(angle);
      }
      read_row(embedding, id, a.h.row_as<float>(row++));
    }
  }
}

ConstRows Decoder::linear_input(Rows x, const Activations& a) {
  if (weights_->dtype() == DType::kF32) return x;
  const Rows rounded(a.rounded.data, x.rows, x.cols, x.cols, DType::kBF16);
  team_.for_each(x.rows, [&](int64_t r) {
    const float* from = x.row_as<float>(r);
    bf16_t* to = rounded.row_as<bf16_t>(r);
    for (int64_t i = 0; i < x.cols; ++i) to[i] = to_bf16(from[i]);
  });
  return rounded;
}

void Decoder::attention(const LayerWeights& w, int layer, const Activations& a) {
  const ModelConfig& c = config();
  norm_rows(a.h, w.attention_norm, c.rms_norm_eps, a.x);
  const ConstRows x = linear_input(a.x, a);
  w.q.run(x, a.q, team_);
  w.k.run(x, a.k, team_);
  w.v.run(x, a.v, team_);
  append_to_caches(w, layer, a);

  const int64_t heads = c.num_attention_heads;
  const int64_t heads_per_key = heads / c.num_key_value_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  const bool sliding = c.sliding_window > 0 && c.is_sliding_layer[layer];
  team_.for_each(a.h.rows * heads, [&](int64_t item) {
    const int64_t row = item / heads, head = item % heads;
    const Place& place = a.places[row];
    const int key_head = static_cast<int>(head / heads_per_key);
    const int64_t last = place.position + 1;
    const int64_t first = sliding ? std::max<int64_t>(0, last - c.sliding_window) : 0;
    attend(a.q.row_as<float>(row) + head * c.head_dim, place.cache->keys(layer, key_head),
           place.cache->values(layer, key_head), first, last, c.head_dim, scale,
           a.attended.row_as<float>(row) + head * c.head_dim);
  });
  w.o.run(linear_input(a.attended, a), a.y, team_);
  add(a.h, a.y);
}

// Norms, clips and turns q in place; k and v go to the caches.
void Decoder::append_to_caches(const LayerWeights& w, int layer, const Activations& a) {
  const ModelConfig& c = config();
  const int64_t dim = c.head_dim;
  const auto half = static_cast<size_t>(dim / 2);
  const auto finish = [&](float* row, int64_t cols, std::span<const float> norm, size_t token) {
    const auto norm_cols = static_cast<int64_t>(norm.size());
    for (int64_t i = 0; norm_cols > 0 && i < cols; i += norm_cols)
      rms_norm(row + i, norm, c.rms_norm_eps, row + i);
    for (int64_t i = 0; c.clip_qkv > 0 && i < cols; ++i)
      row[i] = std::clamp(row[i], -c.clip_qkv, c.clip_qkv);
    for (int64_t i = 0; i < cols; i += dim) {
      rotate(row + i, a.sine.subspan(token * half, half), a.cosine.subspan(token * half, half));
    }
  };
  team_.for_each(a.h.rows, [&](int64_t row) {
    const auto token = static_cast<size_t>(row);
    float *k = a.k.row_as<float>(row), *v = a.v.row_as<float>(row);
    finish(a.q.row_as<float>(row), a.q.cols, w.q_norm, token);
    finish(k, a.k.cols, w.k_norm, token);
    for (int64_t i = 0; c.clip_qkv > 0 && i < a.v.cols; ++i)
      v[i] = std::clamp(v[i], -c.clip_qkv, c.clip_qkv);
    const Place& place = a.places[token];
    for (int head = 0; head < c.num_key_value_heads; ++head) {
      std::copy_n(k + head * dim, dim, place.cache->keys(layer, head) + place.position * dim);
      std::copy_n(v + head * dim, dim, place.cache->values(layer, head) + place.position * dim);
    }
  });
}

void Decoder::feed_forward(const LayerWeights& w, const Activations& a, LoadRecorder* recorder) {
  norm_rows(a.h, w.feed_forward_norm, config().rms_norm_eps, a.x);
  if (!w.dense) {
    ForwardOptions options;
    if (recorder != nullptr) options.local_counts = recorder->counts(w.moe_layer);
    run(moe_layers_[w.moe_layer].forward(a.x, a.y, lane_, options));
  } else if (a.x.rows > 0) {
    const size_t mark = workspace_.mark();
    const Rows act = workspace_.take_rows(a.x.rows, w.dense->intermediate(), w.dense->dtype());
    const auto scratch = workspace_.take<std::byte>(w.dense->scratch_bytes(a.x.rows));
    w.dense->gate_up(linear_input(a.x, a), act, scratch, team_);
    w.dense->down(act, a.y, scratch, team_);
    workspace_.release(mark);
  }
  add(a.h, a.y);
}

void Decoder::head(std::span<const Chunk> batch, const Activations& a, Rows logits) {
  if (logits.rows == 0) return;
  int64_t row = 0, to = 0;
  for (const Chunk& chunk : batch) {
    row += static_cast<int64_t>(chunk.tokens.size());
    const int64_t n = wanted_logits(chunk);
    norm_rows(a.h.slice(row - n, n), weights_->final_norm_, config().rms_norm_eps,
              a.x.slice(to, n));
    to += n;
  }
  weights_->head_.run(linear_input(a.x.slice(0, to), a), logits, team_);
}

}  // namespace trimtab
