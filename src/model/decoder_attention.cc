// SPDX-License-Identifier: Apache-2.0
// The attention block of the decoder, and the caches of keys and values that it reads.
#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/rows.h"
#include "model/decoder_rows.h"
#include "model/decoder_weights.h"
#include "trimtab/error.h"

namespace trimtab {

KvCache::KvCache(const ModelConfig& config, int64_t capacity)
    : capacity_(capacity),
      num_layers_(config.num_hidden_layers),
      num_heads_(config.num_key_value_heads),
      head_dim_(config.head_dim) {
  if (capacity < 1) throw InvalidArgument(cat("a cache needs at least 1 position, not ", capacity));
  data_ = Buffer(cells(num_layers_, 2 * key_cols(config), capacity, sizeof(float)));
}

float* KvCache::keys(int layer, int head) const {
  return data_.as<float>() + (int64_t{layer} * num_heads_ + head) * 2 * capacity_ * head_dim_;
}

float* KvCache::values(int layer, int head) const {
  return keys(layer, head) + capacity_ * head_dim_;
}

void Decoder::attention(const LayerWeights& w, int layer, const Activations& a) {
  const ModelConfig& c = config();
  norm_rows(a.h, w.attention_norm, c.rms_norm_eps, a.x);
  const ConstRows x = linear_input(a.x, a);
  w.q.run(x, a.q, team_);
  w.k.run(x, a.k, team_);
  w.v.run(x, a.v, team_);
  append_to_caches(w, layer, a);

  const int heads = c.num_attention_heads;
  const int heads_per_key = heads / c.num_key_value_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  const bool sliding = c.sliding_window > 0 && c.is_sliding_layer[layer];
  team_.for_each(a.h.rows * heads, [&](int64_t item) {
    const int64_t row = item / heads;
    const int head = static_cast<int>(item % heads), key_head = head / heads_per_key;
    const Place& place = a.places[row];
    const int64_t last = place.position + 1;
    const int64_t first = sliding ? std::max<int64_t>(0, last - c.sliding_window) : 0;
    attend(a.q.row_as<float>(row) + int64_t{head} * c.head_dim, place.cache->keys(layer, key_head),
           place.cache->values(layer, key_head), first, last, c.head_dim, scale,
           a.attended.row_as<float>(row) + int64_t{head} * c.head_dim);
  });
  w.o.run(linear_input(a.attended, a), a.y, team_);
  add_rows(a.y, a.h);
}

// Norms, clips and turns q in place; k and v go to the caches.
void Decoder::append_to_caches(const LayerWeights& w, int layer, const Activations& a) {
  const ModelConfig& c = config();
  const int64_t dim = c.head_dim;
  const auto finish = [&](float* row, int64_t cols, std::span<const float> norm, int64_t token) {
    for (int64_t i = 0; !norm.empty() && i < cols; i += std::ssize(norm))
      rms_norm(row + i, norm, c.rms_norm_eps, row + i);
    for (int64_t i = 0; c.clip_qkv > 0 && i < cols; ++i)
      row[i] = std::clamp(row[i], -c.clip_qkv, c.clip_qkv);
    for (int64_t i = 0; i < cols; i += dim) rotate(row + i, a.sine[token], a.cosine[token]);
  };
  team_.for_each(a.h.rows, [&](int64_t token) {
    float *k = a.k.row_as<float>(token), *v = a.v.row_as<float>(token);
    finish(a.q.row_as<float>(token), a.q.cols, w.q_norm, token);
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

}  // namespace trimtab
