// SPDX-License-Identifier: Apache-2.0
// The attention block of the decoder, and the caches of keys and values that it reads.
#include <algorithm>
#include <cstring>
#include <utility>

#include "attention/attention.h"
#include "attention/kv_head.h"
#include "base/cat.h"
#include "base/rows.h"
#include "model/decoder_rows.h"
#include "model/decoder_weights.h"
#include "trimtab/error.h"

namespace trimtab {

KvCache::KvCache(const ModelConfig& config, int64_t capacity, KvFormat format)
    : capacity_(capacity),
      format_(format),
      num_layers_(config.num_hidden_layers),
      num_heads_(config.num_key_value_heads),
      head_dim_(config.head_dim) {
  if (capacity < 1) throw InvalidArgument(cat("a cache needs at least 1 position, not ", capacity));
  data_ = Buffer(bytes(config, capacity, format));
}

size_t KvCache::bytes(const ModelConfig& config, int64_t capacity, KvFormat format) {
  const KvLayout layout = KvLayout::of(capacity, config.head_dim);
  return cells(config.num_hidden_layers, config.num_key_value_heads, KvHead::bytes(layout, format));
}

size_t KvCache::bytes_per_position(const ModelConfig& config, KvFormat format) {
  return bytes(config, KvLayout::kPanel, format) / KvLayout::kPanel;
}

void KvCache::truncate(int64_t length) {
  if (length < 0 || length > length_)
    throw InvalidArgument(cat("a cache of ", length_, " positions can't be cut to ", length));
  length_ = length;
}

KvCache::KvCache(const KvCache& like, Buffer data)
    : capacity_(like.capacity_),
      length_(like.length_),
      format_(like.format_),
      num_layers_(like.num_layers_),
      num_heads_(like.num_heads_),
      head_dim_(like.head_dim_),
      data_(std::move(data)) {}

KvCache KvCache::copy() const {
  Buffer data(data_.bytes());
  std::memcpy(data.data(), data_.data(), data_.bytes());
  return {*this, std::move(data)};
}

KvHead KvCache::head(int layer, int head) const {
  const KvLayout layout = KvLayout::of(capacity_, head_dim_);
  const int64_t index = int64_t{layer} * num_heads_ + head;
  return {data_.data() + cells(index, KvHead::bytes(layout, format_)), layout, format_};
}

void Decoder::attention(const LayerWeights& w, int layer, const Activations& a) {
  norm_rows(a.h, w.attention_norm, config().rms_norm_eps, a.x);
  const ConstRows x = linear_input(a.x, a);
  w.q.run(x, a.q, a.linear_scratch, team_);
  w.k.run(x, a.k, a.linear_scratch, team_);
  w.v.run(x, a.v, a.linear_scratch, team_);
  turn_heads(w, a);
  append_to_caches(layer, a);
  const int64_t tiles = tile_queries(layer, a);
  attention_->run(a.tiles.first(tiles), a.attention_memory, team_);
  w.o.run(linear_input(a.attended, a), a.y, a.linear_scratch, team_);
  add_rows(a.y, a.h);
}

// Norms, clips and turns q and k, and clips v, in place.
void Decoder::turn_heads(const LayerWeights& w, const Activations& a) {
  const ModelConfig& c = config();
  const auto clip = [&](float* row, int64_t cols) {
    for (int64_t i = 0; c.clip_qkv > 0 && i < cols; ++i)
      row[i] = std::clamp(row[i], -c.clip_qkv, c.clip_qkv);
  };
  const auto finish = [&](float* row, int64_t cols, std::span<const float> norm, int64_t token) {
    for (int64_t i = 0; !norm.empty() && i < cols; i += std::ssize(norm))
      rms_norm(row + i, norm, c.rms_norm_eps, row + i);
    clip(row, cols);
    for (int64_t i = 0; i < cols; i += c.head_dim) rotate(row + i, a.sine[token], a.cosine[token]);
  };
  team_.for_each(a.h.rows, [&](int64_t token) {
    finish(a.q.row_as<float>(token), a.q.cols, w.q_norm, token);
    finish(a.k.row_as<float>(token), a.k.cols, w.k_norm, token);
    clip(a.v.row_as<float>(token), a.v.cols);
  });
}

// By heads, as the keys of positions side by side share cache lines.
void Decoder::append_to_caches(int layer, const Activations& a) {
  const int64_t dim = config().head_dim;
  team_.for_each(config().num_key_value_heads, [&](int64_t item) {
    const int head = static_cast<int>(item);
    for (int64_t token = 0; token < a.h.rows; ++token) {
      const Place& place = a.places[token];
      place.cache->head(layer, head)
          .store(a.k.row_as<float>(token) + head * dim, a.v.row_as<float>(token) + head * dim,
                 place.position);
    }
  });
}

// Fills a.tiles: tokens that stand side by side in a sequence go together, as many as fit. Returns
// how many tiles there are.
int64_t Decoder::tile_queries(int layer, const Activations& a) const {
  const ModelConfig& c = config();
  const int group = c.num_attention_heads / c.num_key_value_heads;
  const int64_t most_tokens = std::max(1, QueryTile::kMaxRows / group);
  const bool sliding = c.sliding_window > 0 && c.is_sliding_layer[layer];
  int64_t tiles = 0;
  for (int64_t token = 0, count = 0; token < a.h.rows; token += count) {
    const Place& place = a.places[token];
    count = 1;
    while (count < most_tokens && token + count < a.h.rows &&
           a.places[token + count].cache == place.cache) {
      ++count;
    }
    for (int head = 0, heads = 0; head < c.num_attention_heads; head += heads) {
      const int key_head = head / group;
      heads = std::min((key_head + 1) * group - head, QueryTile::kMaxRows);
      const int64_t column = int64_t{head} * c.head_dim;
      QueryTile& tile = a.tiles[tiles++];
      tile = {.q = a.q.row_as<float>(token) + column,
              .q_stride = a.q.stride,
              .out = a.attended.row_as<float>(token) + column,
              .out_stride = a.attended.stride,
              .rows = static_cast<int>(count) * heads,
              .group = heads,
              .position = place.position,
              .window = sliding ? c.sliding_window : 0};
      place.cache->head(layer, key_head).give(tile);
    }
  }
  return tiles;
}

}  // namespace trimtab
