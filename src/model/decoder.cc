// SPDX-License-Identifier: Apache-2.0
// One step of the decoder: embedding, layers, head. The attention block is in decoder_attention.cc.
#include "trimtab/decoder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/cat.h"
#include "base/rows.h"
#include "model/decoder_rows.h"
#include "model/decoder_weights.h"
#include "trimtab/batches.h"
#include "trimtab/error.h"

namespace trimtab {

namespace {

int64_t wanted_logits(const Chunk& chunk) {
  const int64_t n = std::ssize(chunk.tokens);
  if (chunk.logits == Chunk::Logits::kAll) return n;
  return chunk.logits == Chunk::Logits::kLast ? std::min<int64_t>(n, 1) : 0;
}

int64_t num_tokens(std::span<const Chunk> batch) {
  int64_t tokens = 0;
  for (const Chunk& chunk : batch) tokens += std::ssize(chunk.tokens);
  return tokens;
}

// A row of x with a NaN or an infinity is lost, and with it its sequence, but no other: it goes
// through the experts as zeros, since a router refuses NaN. Its row of the residual stream h
// becomes NaN, so that the logits are NaN too and generate() ends the sequence.
void set_lost_rows_aside(Rows x, Rows h) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const std::span<float> row(x.row_as<float>(r), x.cols);
    if (all_finite(row)) continue;
    std::ranges::fill(row, 0.0F);
    std::fill_n(h.row_as<float>(r), h.cols, std::numeric_limits<float>::quiet_NaN());
  }
}

void check_routes(const Chunk& chunk, const ModelConfig& config, int num_layers) {
  const auto picks = cells(chunk.tokens.size(), num_layers, config.router.top_k);
  for (const size_t given : {chunk.routes.size(), chunk.replay.size()}) {
    if (given != 0 && given != picks) {
      throw InvalidArgument(cat("routes of ", given, " picks for ", chunk.tokens.size(),
                                " tokens, ", num_layers, " MoE layers and ", config.router.top_k,
                                " experts each"));
    }
  }
}

}  // namespace

Decoder::Activations Decoder::take_activations(int64_t tokens) {
  const ModelConfig& c = config();
  const auto rows = [&](int64_t cols, DType dtype = DType::kF32) {
    return workspace_.take_rows(tokens, cols, dtype);
  };
  const int64_t half = std::ssize(inverse_frequencies_);
  Activations a;
  a.places = workspace_.take<Place>(tokens);
  a.sine = {workspace_.take<float>(cells(tokens, half)), half};
  a.cosine = {workspace_.take<float>(cells(tokens, half)), half};
  a.h = rows(c.hidden_size);
  a.x = rows(c.hidden_size);
  a.y = rows(c.hidden_size);
  a.q = rows(query_cols(c));
  a.k = rows(key_cols(c));
  a.v = rows(key_cols(c));
  a.attended = rows(query_cols(c));
  a.rounded = rows(widest_input(c), DType::kBF16);
  a.tiles = workspace_.take<QueryTile>(cells(tokens, tiles_of_token(c)));
  a.linear_scratch = workspace_.take<std::byte>(linear_scratch_bytes(tokens));
  a.attention_memory = workspace_.take<std::byte>(attention_->workspace_bytes());
  return a;
}

void Decoder::check(std::span<const Chunk> batch, Rows logits) const {
  const ModelConfig& c = config();
  if (weights_->is_outline())
    throw InvalidArgument("the decoder is an outline: its weights were not read");
  const int64_t tokens = num_tokens(batch);
  int64_t wanted = 0;
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
    wanted += wanted_logits(chunk);
    check_routes(chunk, config(), placement_.num_layers());
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
  batch_ = batch;
  const int64_t tokens = num_tokens(batch);
  TraceSteps whole(lane_.trace), part(lane_.trace);
  if (recorder != nullptr && options_.force_balance)
    throw InvalidArgument("a step with forced balance is no load, but there is a recorder for it");
  const size_t mark = workspace_.mark();
  const Activations a = take_activations(tokens);
  embed(batch, a);
  part.step("embedding");
  in_halves_ = second_lane_ && can_halve(own_tokens(tokens), true, lane_);
  const SentBytes before = sent_so_far();
  for (int l = 0; l < config().num_hidden_layers; ++l) {
    const LayerWeights& layer = weights_->layers_[l];
    const TraceArg number{"layer", l};
    if (tokens > 0) {
      attention(layer, l, a);
      part.step("attention", number);
    }
    feed_forward(layer, a, recorder);
    part.step(layer.dense ? "dense" : "moe", number);
  }
  head(batch, a, logits);
  part.step("head");
  workspace_.release(mark);
  batch_ = {};
  sent_ += sent_so_far() - before;
  ++steps_;
  if (in_halves_) ++overlapped_steps_;
  whole.step("step", {"tokens", tokens});
}

// Of the groups that steps use, which others may use between steps.
SentBytes Decoder::sent_so_far() const {
  SentBytes sent = experts_comm_.sent();
  if (layout_groups_.tokens) sent += layout_groups_.tokens->sent();
  for (const Communicator* group : groups_) sent += group->sent();
  if (!second_lane_) return sent;
  sent += second_lane_->comm->sent();
  for (const Communicator* group : second_lane_->groups) sent += group->sent();
  return sent;
}

// Reads the embedding rows, takes places in the caches and computes the angles of the rotary
// embedding.
void Decoder::embed(std::span<const Chunk> batch, const Activations& a) const {
  const MatrixSource embedding = matrix_source(weights_->embedding_);
  int64_t row = 0;
  for (const Chunk& chunk : batch) {
    for (const int32_t id : chunk.tokens) {
      if (chunk.cache->length_ >= chunk.cache->capacity_) {
        throw InvalidArgument(cat("a cache of ", chunk.cache->capacity_, " positions is full"));
      }
      const int64_t position = chunk.cache->length_++;
      a.places[row] = {chunk.cache, position};
      for (int64_t i = 0; i < a.sine.cols(); ++i) {
        const float angle = static_cast<float>(position) * inverse_frequencies_[i];
        a.sine(row, i) = std::sin(angle) * rope_scale_;
        a.cosine(row, i) = std::cos(angle) * rope_scale_;
      }
      read_row(embedding, id, a.h.row_as<float>(row++));
    }
  }
}

// Rounded once for all maps that read it; formats that quantise their rows do so themselves.
ConstRows Decoder::linear_input(Rows x, const Activations& a) {
  if (weights_->linear_format().quantized_rows() != DType::kBF16) return x;
  const Rows rounded(a.rounded.data, x.rows, x.cols, x.cols, DType::kBF16);
  convert_rows(x, rounded, team_);
  return rounded;
}

void Decoder::feed_forward(const LayerWeights& w, const Activations& a, LoadRecorder* recorder) {
  norm_rows(a.h, w.feed_forward_norm, config().rms_norm_eps, a.x);
  if (!w.dense) {
    set_lost_rows_aside(a.x, a.h);
    moe(w, a, recorder);
  } else if (a.x.rows > 0) {
    const size_t mark = workspace_.mark();
    const Rows act = workspace_.take_rows(a.x.rows, w.dense->intermediate(), w.dense->dtype());
    const auto scratch = workspace_.take<std::byte>(w.dense->scratch_bytes(a.x.rows));
    w.dense->gate_up(linear_input(a.x, a), act, scratch, team_);
    w.dense->down(act, a.y, scratch, team_);
    workspace_.release(mark);
  }
  add_rows(a.y, a.h, team_);
}

void Decoder::moe(const LayerWeights& w, const Activations& a, LoadRecorder* recorder) {
  const size_t mark = workspace_.mark();
  const MoeLayer& layer = moe_layers_[w.moe_layer];
  ForwardOptions options;
  options.picks = replayed_picks(w.moe_layer);
  const bool wants_routes =
      std::ranges::any_of(batch_, [](const Chunk& chunk) { return !chunk.routes.empty(); });
  if (wants_routes) options.capture = &capture_;
  if (recorder != nullptr) {
    options.local_counts = recorder->counts(w.moe_layer);
    options.expert_nanoseconds = &recorder->expert_nanoseconds();
  }
  if (options_.force_balance) options.first_token = first_forced_token();
  if (!layout_groups_.tokens) {
    forward(layer, a.x, a.y, options);
  } else {
    const auto [first, count] =
        token_slice(a.x.rows, layout_.token_slices(), layout_groups_.tokens->rank());
    const int64_t top_k = config().router.top_k;
    const Rows out = workspace_.take_rows(count, a.y.cols, DType::kF32);
    slice_routes_ = workspace_.take<int32_t>(wants_routes ? count * top_k : 0);
    if (!options.picks.empty()) options.picks = options.picks.subspan(first * top_k, count * top_k);
    options.first_token += first;
    forward(layer, a.x.slice(first, count), out, options);
    gather_tokens(out, a);
    if (wants_routes) gather_routes(w.moe_layer, slice_routes_);
  }
  workspace_.release(mark);
}

// Of all tokens of this rank, in one call or in two that overlap.
void Decoder::forward(const MoeLayer& layer, ConstRows x, Rows out, const ForwardOptions& options) {
  first_routed_ = options.first_token;
  if (in_halves_) {
    forward_in_halves(layer, x, out, lane_, second_lane_->lane, options);
  } else {
    run(layer.forward(x, out, lane_, options));
  }
}

// Forced picks follow from a token's number alone, so no two tokens of any steps and ranks may have
// the same; those of ranks that share sequences do.
int64_t Decoder::first_forced_token() const {
  return (steps_ * layout_.dp + layout_.dp_rank(comm_.rank())) * options_.max_tokens;
}

// The outputs of all slices of the tokens, in order: y of the whole batch.
void Decoder::gather_tokens(Rows slice, const Activations& a) {
  Communicator& group = *layout_groups_.tokens;
  const std::span<int64_t> bytes = workspace_.take<int64_t>(group.size());
  Pending gather = group.all_gather_v({slice.data, cells(slice.rows, slice.row_bytes())},
                                      {a.y.data, cells(a.y.rows, a.y.row_bytes())}, bytes);
  gather.wait();
  gather.wait_released();
}

void Decoder::gather_routes(int moe_layer, std::span<const int32_t> slice) {
  Communicator& group = *layout_groups_.tokens;
  const std::span<int64_t> bytes = workspace_.take<int64_t>(group.size());
  const std::span<int32_t> all =
      workspace_.take<int32_t>(num_tokens(batch_) * config().router.top_k);
  Pending gather = group.all_gather_v(std::as_bytes(slice), std::as_writable_bytes(all), bytes);
  gather.wait();
  gather.wait_released();
  keep_routes(moe_layer, 0, all);
}

// The picks of the batch that are to be replayed in this layer, -1 where a chunk has none; empty
// where no chunk has any.
std::span<const int32_t> Decoder::replayed_picks(int moe_layer) {
  if (std::ranges::all_of(batch_, [](const Chunk& chunk) { return chunk.replay.empty(); }))
    return {};
  const int64_t top_k = config().router.top_k, layers = placement_.num_layers();
  const std::span<int32_t> picks = workspace_.take<int32_t>(num_tokens(batch_) * top_k);
  int32_t* to = picks.data();
  for (const Chunk& chunk : batch_) {
    for (int64_t t = 0; t < std::ssize(chunk.tokens); ++t, to += top_k) {
      if (chunk.replay.empty()) {
        std::fill_n(to, top_k, -1);
      } else {
        std::copy_n(chunk.replay.data() + (t * layers + moe_layer) * top_k, top_k, to);
      }
    }
  }
  return picks;
}

// ids: of the tokens of the batch from `first` on.
void Decoder::keep_routes(int moe_layer, int64_t first, std::span<const int32_t> ids) const {
  const int64_t top_k = config().router.top_k, layers = placement_.num_layers();
  const int64_t end = first + std::ssize(ids) / top_k;
  int64_t token = 0;
  for (const Chunk& chunk : batch_) {
    for (int64_t t = 0; t < std::ssize(chunk.tokens); ++t, ++token) {
      if (chunk.routes.empty() || token < first || token >= end) continue;
      std::copy_n(ids.data() + (token - first) * top_k, top_k,
                  chunk.routes.data() + (t * layers + moe_layer) * top_k);
    }
  }
}

void Decoder::head(std::span<const Chunk> batch, const Activations& a, Rows logits) {
  if (logits.rows == 0) return;
  int64_t row = 0, to = 0;
  for (const Chunk& chunk : batch) {
    row += std::ssize(chunk.tokens);
    const int64_t n = wanted_logits(chunk);
    norm_rows(a.h.slice(row - n, n), weights_->final_norm_, config().rms_norm_eps,
              a.x.slice(to, n));
    to += n;
  }
  weights_->head_.run(linear_input(a.x.slice(0, to), a), logits, a.linear_scratch, team_);
}

}  // namespace trimtab
