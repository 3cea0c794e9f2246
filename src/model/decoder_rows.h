// SPDX-License-Identifier: Apache-2.0
// The rows that one step of the decoder works on, and what its parts do to whole blocks of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "attention/attention.h"
#include "model/decoder_math.h"
#include "trimtab/decoder.h"
#include "trimtab/table.h"

namespace trimtab {

// The width of a token's queries, and of its keys or values, over all heads.
inline int64_t query_cols(const ModelConfig& config) {
  return int64_t{config.num_attention_heads} * config.head_dim;
}
inline int64_t key_cols(const ModelConfig& config) {
  return int64_t{config.num_key_value_heads} * config.head_dim;
}
// The most tiles of queries that a token can need.
inline int64_t tiles_of_token(const ModelConfig& config) {
  const int group = config.num_attention_heads / config.num_key_value_heads;
  const int most = QueryTile::kMaxRows;
  return int64_t{config.num_key_value_heads} * ((group + most - 1) / most);
}
// The widest input of a linear map outside the feed-forward blocks.
inline int64_t widest_input(const ModelConfig& config) {
  return std::max<int64_t>(config.hidden_size, query_cols(config));
}

// Where a token stands: in the sequence of which cache, and at which position.
struct Decoder::Place {
  KvCache* cache;
  int64_t position;
};

// What the second microbatch has of its own, beside the lane of the first.
struct Decoder::SecondLane {
  SecondLane(std::unique_ptr<Communicator> order, const Dispatcher& dispatcher, Buffer memory,
             Team& team, TraceBuffer* trace)
      : comm(std::move(order)),
        workspace(std::move(memory)),
        owned_groups(dispatcher.make_groups(*comm)),
        groups(pointers_to(owned_groups)),
        lane{*comm, workspace, team, groups, trace} {}

  std::unique_ptr<Communicator> comm;
  Workspace workspace;
  std::vector<std::unique_ptr<Communicator>> owned_groups;
  std::vector<Communicator*> groups;
  Lane lane;
};

// The rows of one step. All are [tokens, ..] and f32, except that `rounded` is bf16.
struct Decoder::Activations {
  std::span<Place> places;
  Table<float> sine, cosine;  // [tokens, head_dim / 2]
  Rows h;                     // [hidden] the residual stream
  Rows x, y;                  // [hidden] a block's normalised input and its output
  Rows q, k, v, attended;     // [heads * head_dim] of the queries or of the keys and values
  Rows rounded;               // [widest_input] bf16
  std::span<std::byte> linear_scratch;  // of any linear map
  // [tokens * tiles_of_token()] those of a layer, and the memory to compute them.
  std::span<QueryTile> tiles;
  std::span<std::byte> attention_memory;
};

inline void norm_rows(ConstRows x, std::span<const float> weight, float eps, Rows out) {
  for (int64_t r = 0; r < x.rows; ++r)
    rms_norm(x.row_as<float>(r), weight, eps, out.row_as<float>(r));
}

}  // namespace trimtab
