// SPDX-License-Identifier: Apache-2.0
#include "trimtab/traffic.h"

#include <algorithm>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {
namespace {

// A rank or node that gets a part of an expert's picks.
struct Part {
  int32_t to;
  double share;
};

// Where the picks of each expert go, as seen from each source.
class Shares {
 public:
  Shares(std::span<const int32_t> logical, std::span<const int32_t> first_slots,
         std::span<const int32_t> node_of_rank, int num_experts)
      : replicas_(cells(num_experts)), node_of_rank_(node_of_rank) {
    const SlotRanges slots(first_slots);
    for (int rank = 0; rank < slots.num_ranks(); ++rank) {
      for (const int32_t e : slots.of(rank, logical)) replicas_[cells(e)].push_back(rank);
    }
  }

  // [experts] the parts by rank, ascending, each rank once, for sources on this node that do not
  // hold the expert themselves.
  std::vector<std::vector<Part>> by_rank(int source_node) const {
    std::vector<std::vector<Part>> all;
    for (const std::vector<int32_t>& replicas : replicas_)
      all.push_back(merged(near(replicas, source_node)));
    return all;
  }

  // [experts] the parts by node, for sources on this node.
  std::vector<std::vector<Part>> by_node(int source_node) const {
    std::vector<std::vector<Part>> all;
    for (const std::vector<int32_t>& replicas : replicas_) {
      std::vector<int32_t> chosen = near(replicas, source_node);
      for (int32_t& rank : chosen) rank = node(rank);
      std::ranges::sort(chosen);
      all.push_back(merged(chosen));
    }
    return all;
  }

  // The ranks that hold an expert, ascending; a rank that holds it twice comes twice.
  std::span<const int32_t> ranks_of(int32_t expert) const { return replicas_[cells(expert)]; }
  bool holds(int rank, int32_t expert) const {
    return std::ranges::binary_search(ranks_of(expert), rank);
  }
  int32_t node(int rank) const { return node_of_rank_.empty() ? 0 : node_of_rank_[cells(rank)]; }

 private:
  // The replicas on a node, or, where it has none, all.
  std::vector<int32_t> near(const std::vector<int32_t>& replicas, int32_t source_node) const {
    std::vector<int32_t> own;
    for (const int32_t rank : replicas) {
      if (node(rank) == source_node) own.push_back(rank);
    }
    return own.empty() ? replicas : own;
  }

  static std::vector<Part> merged(const std::vector<int32_t>& chosen) {
    std::vector<Part> parts;
    const double each = 1.0 / static_cast<double>(std::max<size_t>(1, chosen.size()));
    for (const int32_t to : chosen) {
      if (parts.empty() || parts.back().to != to) parts.push_back({to, 0});
      parts.back().share += each;
    }
    return parts;
  }

  std::vector<std::vector<int32_t>> replicas_;  // [experts] ranks, ascending
  std::span<const int32_t> node_of_rank_;
};

// The probability, for each rank or node, that one token reaches it.
class Reached {
 public:
  explicit Reached(int places) : missed_(cells(places), 1.0) {}

  void send(std::span<const Part> parts) {
    for (const Part& part : parts) {
      double& missed = missed_[cells(part.to)];
      if (missed == 1.0) touched_.push_back(part.to);
      missed *= 1 - part.share;
    }
  }
  // Adds the probabilities to copies, and is as new afterwards.
  void add_to(std::span<double> copies, double weight) {
    for (const int32_t to : touched_) {
      copies[cells(to)] += weight * (1 - missed_[cells(to)]);
      missed_[cells(to)] = 1;
    }
    touched_.clear();
  }

 private:
  std::vector<double> missed_;
  std::vector<int32_t> touched_;
};

double off_diagonal(const std::vector<double>& matrix, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (i != j) sum += matrix[cells(i, n) + cells(j)];
    }
  }
  return sum;
}

}  // namespace

void check_tokens(const TokenSample& tokens, int num_layers, int num_experts, int num_ranks) {
  if (tokens.num_layers != num_layers || tokens.num_experts != num_experts || tokens.top_k < 1 ||
      std::ssize(tokens.ids) % (int64_t{num_layers} * std::max(1, tokens.top_k)) != 0) {
    throw InvalidArgument(cat("sampled tokens of ", tokens.num_layers, " layers x ",
                              tokens.num_experts, " experts, ", tokens.top_k, " picks and ",
                              tokens.ids.size(), " ids; the loads have ", num_layers, " layers x ",
                              num_experts, " experts"));
  }
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.ids[i] >= 0 && tokens.ids[i] < num_experts) continue;
    throw InvalidArgument(cat("sampled token ",
                              static_cast<int64_t>(i) / (int64_t{num_layers} * tokens.top_k),
                              " picks expert ", tokens.ids[i], " of ", num_experts));
  }
  const std::vector<int32_t>& sources = tokens.source_rank;
  if (!sources.empty() && std::ssize(sources) != tokens.num_tokens()) {
    throw InvalidArgument(
        cat(sources.size(), " source ranks for ", tokens.num_tokens(), " sampled tokens"));
  }
  for (size_t t = 0; t < sources.size(); ++t) {
    if (sources[t] >= 0 && sources[t] < num_ranks) continue;
    throw InvalidArgument(
        cat("sampled token ", t, " comes from rank ", sources[t], " of ", num_ranks));
  }
}

double Traffic::between_ranks() const {
  return off_diagonal(rank_copies, num_ranks);
}

double Traffic::rank_copies_between_nodes(std::span<const int32_t> node_of_rank) const {
  double sum = 0;
  for (int i = 0; i < num_ranks && !node_of_rank.empty(); ++i) {
    for (int j = 0; j < num_ranks; ++j) {
      if (node_of_rank[cells(i)] != node_of_rank[cells(j)])
        sum += rank_copies[cells(i, num_ranks) + cells(j)];
    }
  }
  return sum;
}

double Traffic::between_nodes() const {
  return off_diagonal(node_copies, num_nodes);
}

double Traffic::picks_between_nodes() const {
  return off_diagonal(node_picks, num_nodes);
}

double Traffic::cost(std::span<const double> prices) const {
  double sum = 0;
  for (size_t i = 0; i < rank_copies.size(); ++i) sum += prices[i] * rank_copies[i];
  return sum;
}

Traffic& Traffic::operator*=(double factor) {
  for (std::vector<double>* values : {&rank_copies, &node_copies, &node_picks}) {
    for (double& value : *values) value *= factor;
  }
  return *this;
}

namespace {

Traffic empty_traffic(std::span<const int32_t> first_slots, std::span<const int32_t> node_of_rank) {
  Traffic traffic;
  traffic.num_ranks = static_cast<int>(first_slots.size()) - 1;
  if (!node_of_rank.empty() && std::ssize(node_of_rank) != traffic.num_ranks) {
    throw InvalidArgument(
        cat("nodes of ", node_of_rank.size(), " ranks, placement of ", traffic.num_ranks));
  }
  traffic.num_nodes = node_of_rank.empty() ? 1 : *std::ranges::max_element(node_of_rank) + 1;
  return traffic;
}

// Adds up what each source rank sends to each rank. Where sources are not known, a token's picks go
// the same way from all ranks of a node that hold none of them, so that only those which hold one
// are looked at one by one.
class RankCopies {
 public:
  RankCopies(const Shares& shares, const TokenSample& tokens, int layer, int num_ranks)
      : shares_(shares), tokens_(tokens), layer_(layer), reached_(num_ranks) {
    int nodes = 0;
    for (int r = 0; r < num_ranks; ++r) nodes = std::max(nodes, shares.node(r) + 1);
    for (int n = 0; n < nodes; ++n) parts_.push_back(shares.by_rank(n));
  }

  void from_known_sources(Table<double> copies) {
    const double weight = 1.0 / static_cast<double>(tokens_.num_tokens());
    for (int64_t t = 0; t < tokens_.num_tokens(); ++t) {
      const int32_t source = tokens_.source_rank[cells(t)];
      send(t, source);
      reached_.add_to(copies[source], weight);
    }
  }

  void from_all_ranks(Table<double> copies) {
    const auto ranks = static_cast<int>(copies.rows());
    const double weight = 1.0 / ranks / static_cast<double>(tokens_.num_tokens());
    std::vector<double> by_node(cells(std::ssize(parts_), ranks));
    const Table from_node(by_node, ranks);
    for (int64_t t = 0; t < tokens_.num_tokens(); ++t) {
      for (int n = 0; n < std::ssize(parts_); ++n) {
        for (const int32_t e : tokens_.picks(t, layer_)) reached_.send(parts_[cells(n)][cells(e)]);
        reached_.add_to(from_node[n], weight);
      }
      for (const int32_t source : holders(t)) {
        for (const int32_t e : tokens_.picks(t, layer_))
          reached_.send(parts_[cells(shares_.node(source))][cells(e)]);
        reached_.add_to(copies[source], -weight);
        send(t, source);
        reached_.add_to(copies[source], weight);
      }
    }
    for (int source = 0; source < ranks; ++source) {
      const std::span<const double> common = from_node[shares_.node(source)];
      for (int to = 0; to < ranks; ++to) {
        double& sum = copies(source, to);
        sum = std::max(0.0, sum + common[cells(to)]);  // rounding may leave a little below 0
      }
    }
  }

 private:
  void send(int64_t token, int32_t source) {
    for (const int32_t e : tokens_.picks(token, layer_)) {
      const Part own{source, 1};
      if (shares_.holds(source, e)) {
        reached_.send({&own, 1});
      } else {
        reached_.send(parts_[cells(shares_.node(source))][cells(e)]);
      }
    }
  }

  // The ranks that hold some pick of a token, each once.
  std::span<const int32_t> holders(int64_t token) {
    holders_.clear();
    for (const int32_t e : tokens_.picks(token, layer_)) {
      const std::span<const int32_t> ranks = shares_.ranks_of(e);
      holders_.insert(holders_.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(holders_);
    holders_.erase(std::ranges::unique(holders_).begin(), holders_.end());
    return holders_;
  }

  const Shares& shares_;
  const TokenSample& tokens_;
  const int layer_;
  Reached reached_;
  std::vector<std::vector<std::vector<Part>>> parts_;  // [nodes][experts]
  std::vector<int32_t> holders_;
};

void add_ranks(const Shares& shares, const TokenSample& tokens, int layer, Traffic& traffic) {
  traffic.rank_copies.resize(cells(traffic.num_ranks, traffic.num_ranks));
  const Table copies(traffic.rank_copies, traffic.num_ranks);
  RankCopies adder(shares, tokens, layer, traffic.num_ranks);
  if (tokens.source_rank.empty()) {
    adder.from_all_ranks(copies);
  } else {
    adder.from_known_sources(copies);
  }
}

void add_nodes(const Shares& shares, std::span<const int32_t> node_of_rank,
               const TokenSample& tokens, int layer, Traffic& traffic) {
  const int nodes = traffic.num_nodes;
  traffic.node_copies.resize(cells(nodes, nodes));
  traffic.node_picks.resize(cells(nodes, nodes));
  const auto node_of = [&](int rank) {
    return node_of_rank.empty() ? 0 : node_of_rank[cells(rank)];
  };
  const bool known = !tokens.source_rank.empty();
  Reached reached(nodes);
  for (int source = 0; source < nodes; ++source) {
    int on_node = 0;
    for (int r = 0; r < traffic.num_ranks; ++r) on_node += node_of(r) == source ? 1 : 0;
    const double weight = (known ? 1.0 : static_cast<double>(on_node) / traffic.num_ranks) /
                          static_cast<double>(tokens.num_tokens());
    const std::vector<std::vector<Part>> parts = shares.by_node(source);
    const std::span row =
        std::span(traffic.node_copies).subspan(cells(source, nodes), cells(nodes));
    const std::span picks =
        std::span(traffic.node_picks).subspan(cells(source, nodes), cells(nodes));
    for (int64_t t = 0; t < tokens.num_tokens(); ++t) {
      if (known && node_of(tokens.source_rank[cells(t)]) != source) continue;
      for (const int32_t e : tokens.picks(t, layer)) {
        reached.send(parts[cells(e)]);
        for (const Part& part : parts[cells(e)]) picks[cells(part.to)] += weight * part.share;
      }
      reached.add_to(row, weight);
    }
  }
}

}  // namespace

Traffic traffic_of(std::span<const int32_t> logical, std::span<const int32_t> first_slots,
                   std::span<const int32_t> node_of_rank, const TokenSample& tokens, int layer) {
  Traffic traffic = empty_traffic(first_slots, node_of_rank);
  const Shares shares(logical, first_slots, node_of_rank, tokens.num_experts);
  add_ranks(shares, tokens, layer, traffic);
  add_nodes(shares, node_of_rank, tokens, layer, traffic);
  return traffic;
}

double copies_between_nodes(std::span<const int32_t> logical, std::span<const int32_t> first_slots,
                            std::span<const int32_t> node_of_rank, const TokenSample& tokens,
                            int layer) {
  Traffic traffic = empty_traffic(first_slots, node_of_rank);
  const Shares shares(logical, first_slots, node_of_rank, tokens.num_experts);
  add_nodes(shares, node_of_rank, tokens, layer, traffic);
  return traffic.between_nodes();
}

double cost_of_copies(std::span<const int32_t> logical, std::span<const int32_t> first_slots,
                      const Topology& topology, const TokenSample& tokens, int layer) {
  Traffic traffic = empty_traffic(first_slots, topology.node_of_rank);
  const Shares shares(logical, first_slots, topology.node_of_rank, tokens.num_experts);
  add_ranks(shares, tokens, layer, traffic);
  return traffic.cost(topology.prices);
}

Traffic mean_traffic(const Placement& placement, std::span<const int32_t> node_of_rank,
                     const TokenSample& tokens) {
  check_tokens(tokens, placement.num_layers(), placement.num_experts(), placement.num_ranks());
  Traffic mean;
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    const Traffic one =
        traffic_of(placement.logical(layer), placement.first_slots(), node_of_rank, tokens, layer);
    if (layer == 0) {
      mean = one;
      continue;
    }
    for (const auto field : {&Traffic::rank_copies, &Traffic::node_copies, &Traffic::node_picks}) {
      for (size_t i = 0; i < (mean.*field).size(); ++i) (mean.*field)[i] += (one.*field)[i];
    }
  }
  return mean *= 1.0 / placement.num_layers();
}

}  // namespace trimtab
