// SPDX-License-Identifier: Apache-2.0
// Which ranks and nodes the tokens of a recording visit. Dispatchers such as `packed` send a token
// once to each rank that holds some of its experts, and `hybrid` once to each node, so what goes
// over the wires follows from the experts that one token picks together, and not from the loads of
// single experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/placement.h"
#include "trimtab/table.h"
#include "trimtab/topology.h"

namespace trimtab {

// Some tokens of a recording, with the experts that each of them picked in each layer.
struct TokenSample {
  int num_layers = 0;
  int num_experts = 0;
  int top_k = 0;                     // experts that a token picks in a layer
  std::vector<int32_t> ids;          // [tokens, layers, top_k]
  std::vector<int32_t> source_rank;  // [tokens] where a token comes from; empty: it is not known,
                                     // and each rank sends the same part of every token
  int num_ranks = 0;                 // ranks that tokens come from; 0: sources are not known
  int64_t tokens_seen = 0;           // tokens of the recording, of which these are a sample
  int64_t stride = 1;                // every so many-th token of a source is in the sample
  // The recording has counts of pairs and no tokens: each "token" here is a pair of experts that
  // one token picked, as often as the counts say. Copies are then those of pairs.
  bool is_of_pairs = false;

  int64_t num_tokens() const {
    return num_layers * top_k == 0 ? 0 : std::ssize(ids) / (int64_t{num_layers} * top_k);
  }
  // [top_k]
  std::span<const int32_t> picks(int64_t token, int layer) const {
    return {ids.data() + (token * num_layers + layer) * top_k, cells(top_k)};
  }
};

// The most tokens that a sample keeps: every n-th of those in the recording, so that its size is
// bounded whatever the recording's is.
constexpr int64_t kMaxSampledTokens = 16'384;

// Throws InvalidArgument when sizes do not fit each other or the placement's, an expert is out of
// range, or a source is none of the placement's ranks; the token is named.
void check_tokens(const TokenSample& tokens, int num_layers, int num_experts, int num_ranks);

// What one token sends on average in one layer. Each of its picks goes to a replica on the source
// rank, else to any replica on the source's node with equal probability, else to any replica with
// equal probability; picks choose independently. All values are exact expectations for this rule.
struct Traffic {
  int num_ranks = 0;
  int num_nodes = 0;
  // [ranks, ranks]: the copies that a source rank sends to a rank, one for each token and rank
  // (`packed`). What stays on the rank is the diagonal.
  std::vector<double> rank_copies;
  // [nodes, nodes]: the copies that the ranks of a node send to a node, one for each token and node
  // (`hybrid`).
  std::vector<double> node_copies;
  // [nodes, nodes]: the same in picks, one for each pick (dispatchers that send a row for each).
  std::vector<double> node_picks;

  // The sums of what leaves a rank, and what leaves a node in copies to ranks, copies to nodes, and
  // picks.
  double between_ranks() const;
  double rank_copies_between_nodes(std::span<const int32_t> node_of_rank) const;
  double between_nodes() const;
  double picks_between_nodes() const;

  // The sum of prices x rank_copies. prices: [ranks, ranks], as in Topology.
  double cost(std::span<const double> prices) const;

  // Scales all values, so that they are those of a step, say.
  Traffic& operator*=(double factor);
};

// logical: [slots] one layer's placement; first_slots: [ranks + 1]. node_of_rank: [ranks], or empty
// for one node. Throws InvalidArgument when sizes differ. Tokens must have passed check_tokens().
Traffic traffic_of(std::span<const int32_t> logical, std::span<const int32_t> first_slots,
                   std::span<const int32_t> node_of_rank, const TokenSample& tokens, int layer);
// Traffic::between_nodes() alone, which takes far less time.
double copies_between_nodes(std::span<const int32_t> logical, std::span<const int32_t> first_slots,
                            std::span<const int32_t> node_of_rank, const TokenSample& tokens,
                            int layer);
// Traffic::cost() alone, for a topology with prices.
double cost_of_copies(std::span<const int32_t> logical, std::span<const int32_t> first_slots,
                      const Topology& topology, const TokenSample& tokens, int layer);
// The mean over the layers. The matrix of a step is this times the layers and the tokens of a step.
// Throws InvalidArgument as above and as check_tokens().
Traffic mean_traffic(const Placement& placement, std::span<const int32_t> node_of_rank,
                     const TokenSample& tokens);

}  // namespace trimtab
