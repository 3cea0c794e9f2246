// SPDX-License-Identifier: Apache-2.0
#include "trimtab/topology.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {

Topology Topology::even(int num_ranks, int num_nodes) {
  if (num_nodes < 1 || num_ranks < 1 || num_ranks % num_nodes != 0) {
    throw InvalidArgument(cat(num_nodes, " nodes do not divide ", num_ranks, " ranks"));
  }
  Topology topology;
  for (int r = 0; r < num_ranks; ++r) topology.node_of_rank.push_back(r / (num_ranks / num_nodes));
  return topology;
}

Topology Topology::with_two_prices(std::vector<int32_t> node_of_rank, double in_node,
                                   double between_nodes) {
  Topology topology{.node_of_rank = std::move(node_of_rank)};
  const auto ranks = std::ssize(topology.node_of_rank);
  topology.prices.resize(cells(ranks, ranks));
  const Table prices(topology.prices, ranks);
  for (int64_t from = 0; from < ranks; ++from) {
    for (int64_t to = 0; to < ranks; ++to) {
      const bool one_node = topology.node_of_rank[cells(from)] == topology.node_of_rank[cells(to)];
      prices(from, to) = from == to ? 0 : one_node ? in_node : between_nodes;
    }
  }
  return topology;
}

int Topology::num_nodes() const {
  return node_of_rank.empty() ? 1 : *std::ranges::max_element(node_of_rank) + 1;
}

void check_topology(const Topology& topology, int num_ranks) {
  const std::vector<int32_t>& nodes = topology.node_of_rank;
  if (!nodes.empty() && std::ssize(nodes) != num_ranks) {
    throw InvalidArgument(cat("a topology of ", nodes.size(), " ranks, placement of ", num_ranks));
  }
  for (size_t r = 0; r < nodes.size(); ++r) {
    if (nodes[r] < 0 || nodes[r] >= num_ranks) {
      throw InvalidArgument(
          cat("rank ", r, " is on node ", nodes[r], ", expected 0 to ", num_ranks - 1));
    }
  }
  if (!topology.has_prices()) return;
  if (topology.prices.size() != cells(num_ranks, num_ranks)) {
    throw InvalidArgument(
        cat(topology.prices.size(), " prices of a topology, placement of ", num_ranks, " ranks"));
  }
  const Table<const double> prices(topology.prices, num_ranks);
  for (int from = 0; from < num_ranks; ++from) {
    for (int to = 0; to < num_ranks; ++to) {
      const double price = prices(from, to);
      if (std::isfinite(price) && price >= 0 && (from != to || price == 0)) continue;
      throw InvalidArgument(cat("the price from rank ", from, " to rank ", to, " is ", price,
                                from == to ? ", expected 0" : ", expected >= 0"));
    }
  }
}

}  // namespace trimtab
