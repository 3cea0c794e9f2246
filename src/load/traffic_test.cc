// SPDX-License-Identifier: Apache-2.0
#include "trimtab/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

// Placement, nodes and tokens of a random case.
struct TrafficCase {
  Placement placement;
  std::vector<int32_t> nodes;
  TokenSample tokens;
};

TrafficCase random_traffic_case(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int experts = 3 + below(5), ranks = 2 + below(4), layers = 1 + below(2);
  std::vector<int> slots(cells(ranks));
  int total = 0;
  for (int& count : slots) total += count = (experts + ranks - 1) / ranks + below(3);
  std::vector<int32_t> logical;
  for (int l = 0; l < layers; ++l) {
    std::vector<int32_t> layer;
    for (int s = 0; s < total; ++s) layer.push_back(s < experts ? s : below(experts));
    std::ranges::shuffle(layer, random);
    logical.insert(logical.end(), layer.begin(), layer.end());
  }
  std::vector<int32_t> nodes;
  for (int r = 0; r < ranks; ++r) nodes.push_back(r * (1 + below(2)) / 2);
  TokenSample tokens{.num_layers = layers, .num_experts = experts, .top_k = 1 + below(3)};
  for (int t = 0; t < 4; ++t) {
    for (int l = 0; l < layers; ++l) {
      std::set<int32_t> picks;
      while (std::ssize(picks) < tokens.top_k) picks.insert(below(experts));
      tokens.ids.insert(tokens.ids.end(), picks.begin(), picks.end());
    }
    if (seed % 2 == 0) tokens.source_rank.push_back(below(ranks));
  }
  return {Placement(layers, experts, slots, logical), nodes, tokens};
}

// The slots that a pick may go to from a source: its own rank's, else its node's, else all.
std::vector<int> choices(const TrafficCase& given, int layer, int source, int expert) {
  std::vector<int> own, near, all;
  for (int s = 0; s < given.placement.num_slots(); ++s) {
    if (given.placement.logical(layer)[cells(s)] != expert) continue;
    const int rank = given.placement.rank_of_slot(s);
    all.push_back(rank);
    if (rank == source) own.push_back(rank);
    if (given.nodes[cells(rank)] == given.nodes[cells(source)]) near.push_back(rank);
  }
  return !own.empty() ? own : !near.empty() ? near : all;
}

// Every choice of replicas of every token, one by one: copies to ranks and to nodes, and picks.
void by_enumeration(const TrafficCase& given, int layer, std::vector<double>& to_rank,
                    std::vector<double>& to_node, std::vector<double>& picks, int nodes) {
  const int ranks = given.placement.num_ranks();
  const auto tokens = static_cast<double>(given.tokens.num_tokens());
  for (int64_t t = 0; t < given.tokens.num_tokens(); ++t) {
    for (int source = 0; source < ranks; ++source) {
      const bool known = !given.tokens.source_rank.empty();
      if (known && given.tokens.source_rank[cells(t)] != source) continue;
      std::vector<std::vector<int>> options;
      int64_t ways = 1;
      for (const int32_t e : given.tokens.picks(t, layer)) {
        options.push_back(choices(given, layer, source, e));
        ways *= std::ssize(options.back());
      }
      const double weight = 1 / tokens / (known ? 1 : ranks) / static_cast<double>(ways);
      const int from = given.nodes[cells(source)];
      for (int64_t way = 0; way < ways; ++way) {
        std::set<int> visited, visited_nodes;
        int64_t rest = way;
        for (const std::vector<int>& one : options) {
          const int rank = one[cells(rest % std::ssize(one))];
          rest /= std::ssize(one);
          visited.insert(rank);
          visited_nodes.insert(given.nodes[cells(rank)]);
          picks[cells(from * nodes + given.nodes[cells(rank)])] += weight;
        }
        for (const int rank : visited) to_rank[cells(source * ranks + rank)] += weight;
        for (const int node : visited_nodes) to_node[cells(from * nodes + node)] += weight;
      }
    }
  }
}

TEST(Traffic, IsThatOfEveryChoiceOfReplicasOneByOne) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const TrafficCase given = random_traffic_case(seed);
    const int ranks = given.placement.num_ranks();
    for (int layer = 0; layer < given.placement.num_layers(); ++layer) {
      const Traffic traffic =
          traffic_of(given.placement.logical(layer), given.placement.first_slots(), given.nodes,
                     given.tokens, layer);
      std::vector<double> to_rank(cells(ranks, ranks)), to_node(traffic.node_copies.size());
      std::vector<double> picks(to_node.size());
      EXPECT_EQ(copies_between_nodes(given.placement.logical(layer), given.placement.first_slots(),
                                     given.nodes, given.tokens, layer),
                traffic.between_nodes());
      by_enumeration(given, layer, to_rank, to_node, picks, traffic.num_nodes);
      for (size_t i = 0; i < to_rank.size(); ++i)
        EXPECT_NEAR(traffic.rank_copies[i], to_rank[i], 1e-9) << i;
      for (size_t i = 0; i < to_node.size(); ++i) {
        EXPECT_NEAR(traffic.node_copies[i], to_node[i], 1e-9) << i;
        EXPECT_NEAR(traffic.node_picks[i], picks[i], 1e-9) << i;
      }
    }
  }
}

TEST(Traffic, SumsWhatLeavesRanksAndNodes) {
  // Two nodes of two ranks, an expert on each; the only token picks experts 0 and 2 from rank 0.
  const TokenSample tokens{1, 4, 2, {0, 2}, {0}, 1};
  const std::vector<int32_t> logical = {0, 1, 2, 3}, first = {0, 1, 2, 3, 4}, nodes = {0, 0, 1, 1};
  const Traffic traffic = traffic_of(logical, first, nodes, tokens, 0);
  EXPECT_EQ(traffic.between_ranks(), 1);
  EXPECT_EQ(traffic.between_nodes(), 1);
  EXPECT_EQ(traffic.rank_copies_between_nodes(nodes), 1);
  EXPECT_EQ(traffic.picks_between_nodes(), 1);
  EXPECT_EQ(traffic_of(logical, first, {}, tokens, 0).between_nodes(), 0);
}

TEST(Traffic, RefusesTokensThatDoNotFit) {
  TokenSample tokens{1, 4, 2, {0, 2}, {}, 1};
  EXPECT_NO_THROW(check_tokens(tokens, 1, 4, 2));
  EXPECT_THROW(check_tokens(tokens, 2, 4, 2), InvalidArgument);
  EXPECT_THROW(check_tokens(tokens, 1, 5, 2), InvalidArgument);
  tokens.ids = {0, 4};
  EXPECT_THROW(check_tokens(tokens, 1, 4, 2), InvalidArgument);
  tokens.ids = {0, 3};
  tokens.source_rank = {2};
  EXPECT_THROW(check_tokens(tokens, 1, 4, 2), InvalidArgument);
  tokens.source_rank = {0, 0};
  EXPECT_THROW(check_tokens(tokens, 1, 4, 2), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
