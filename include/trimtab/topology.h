// SPDX-License-Identifier: Apache-2.0
// Which ranks are on one node, and what a copy of a token costs from rank to rank.
#pragma once

#include <cstdint>
#include <vector>

namespace trimtab {

struct Topology {
  std::vector<int32_t> node_of_rank = {};  // [ranks]; empty: all ranks are on one node
  // [ranks, ranks] the price of one copy of a token from a rank (row) to another, >= 0 in any unit,
  // 0 on the diagonal. Empty: there are no prices, and what goes between nodes is counted.
  std::vector<double> prices = {};

  // Ranks numbered node by node, equally many on each. Throws InvalidArgument when nodes do not
  // divide ranks.
  static Topology even(int num_ranks, int num_nodes);
  // node_of_rank: [ranks], not empty. A copy costs `in_node` between two ranks of a node, and
  // `between_nodes` elsewhere.
  static Topology with_two_prices(std::vector<int32_t> node_of_rank, double in_node,
                                  double between_nodes);

  int num_nodes() const;
  int node(int rank) const { return node_of_rank.empty() ? 0 : node_of_rank[rank]; }
  bool has_prices() const { return !prices.empty(); }
};

// Throws InvalidArgument, naming the rank, when sizes do not fit, a node is none of 0 to ranks - 1,
// or a price is negative, infinite, no number, or not 0 on the diagonal.
void check_topology(const Topology& topology, int num_ranks);

}  // namespace trimtab
