// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/wire_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "policy/testing.h"
#include "trimtab/policy.h"
#include "trimtab/rank_loads.h"

namespace trimtab {
namespace {

// Tokens that pick within one of `topics` sets of experts, mixed over the ids, with some strays.
TokenSample topical_tokens(int experts, int top_k, int topics, int tokens, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  TokenSample sample{.num_layers = 1, .num_experts = experts, .top_k = top_k};
  for (int t = 0; t < tokens; ++t) {
    const int topic = below(topics);
    std::set<int32_t> picks;
    while (std::ssize(picks) < top_k) {
      const int e = below(experts);
      if (e % topics == topic || below(8) == 0) picks.insert(e);
    }
    sample.ids.insert(sample.ids.end(), picks.begin(), picks.end());
  }
  return sample;
}

std::vector<int64_t> loads_of(const TokenSample& tokens) {
  std::vector<int64_t> loads(cells(tokens.num_experts));
  for (const int32_t e : tokens.ids) ++loads[cells(e)];
  return loads;
}

double peak_of(std::span<const int32_t> placement, std::span<const int32_t> first,
               const std::vector<int64_t>& loads) {
  return std::ranges::max(rank_loads(placement, SlotRanges(first), loads));
}

// The least cost of all placements of up to 8 experts on 4 ranks of 2 slots whose peak load is
// within the limit: every choice of replicas and every order.
double least_of_all(int experts, const std::vector<int64_t>& loads, double limit,
                    const std::function<double(std::span<const int32_t>)>& cost) {
  const std::vector<int32_t> first = equal_slots(4, 2);
  double least = std::numeric_limits<double>::infinity();
  const auto enumerate = [&](std::vector<int32_t> all) {
    std::ranges::sort(all);
    do {
      bool sorted = true;  // one order of the slots of a rank is enough, without duplicates
      for (size_t s = 0; s < 8; s += 2) sorted &= all[s] < all[s + 1];
      if (sorted && peak_of(all, first, loads) <= limit) least = std::min(least, cost(all));
    } while (std::ranges::next_permutation(all).found);
  };
  std::vector<int32_t> all(8);
  for (int i = 0; i < experts; ++i) all[cells(i)] = i;
  if (experts == 8) {
    enumerate(all);
    return least;
  }
  for (all[7] = 0; all[7] < experts; ++all[7]) {
    if (experts == 7) {
      enumerate(all);
      continue;
    }
    for (all[6] = 0; all[6] <= all[7]; ++all[6]) enumerate(all);
  }
  return least;
}

const RuleKeeper kNoRules({}, 1);

// Searches layers of 6 to 8 experts on 4 ranks; returns how many of the cases ended at the optimum.
// with: the topology of a case, and whether tokens say where they come from.
int optima_found(int cases, const std::function<Topology(uint32_t seed)>& with, bool has_sources) {
  const std::vector<int32_t> first = equal_slots(4, 2);
  int best_found = 0;
  for (uint32_t seed = 0; seed < static_cast<uint32_t>(cases); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int experts = 6 + static_cast<int>(seed % 3);
    const Topology topology = with(seed);
    TokenSample tokens = topical_tokens(experts, 2, 2, 60, seed);
    for (int t = 0; has_sources && t < 60; ++t) tokens.source_rank.push_back(t * 7 % 4);
    const std::vector<int64_t> loads = loads_of(tokens);
    std::vector<int32_t> start;
    for (int s = 0; s < 8; ++s) start.push_back(s % experts);
    const double limit = peak_of(start, first, loads) * 1.05;
    const auto cost = [&](std::span<const int32_t> placement) {
      return topology.has_prices()
                 ? cost_of_copies(placement, first, topology, tokens, 0)
                 : copies_between_nodes(placement, first, topology.node_of_rank, tokens, 0);
    };
    const double least = least_of_all(experts, loads, limit, cost);
    const std::vector<std::vector<double>> window = {{loads.begin(), loads.end()}};
    const std::vector<int32_t> found = search_wires({.slots = SlotRanges(first),
                                                     .rules = kNoRules,
                                                     .topology = topology,
                                                     .tokens = tokens,
                                                     .loads = window,
                                                     .slack = 0.05,
                                                     .max_tokens = 1000,
                                                     .steps = 20'000},
                                                    start);
    EXPECT_LE(peak_of(found, first, loads), limit + 1e-9);
    EXPECT_GE(cost(found), least - 1e-9);
    EXPECT_LE(cost(found), cost(start));
    EXPECT_LE(cost(found), least * 1.15 + 1e-9);  // no case is far from its optimum
    if (cost(found) <= least * 1.001 + 1e-9) ++best_found;
  }
  return best_found;
}

constexpr int kCases = 30;

TEST(WireSearch, FindsTheBestOfAllPlacementsOfSmallLayers) {
  const auto nodes = [](uint32_t) { return Topology{.node_of_rank = {0, 0, 1, 1}}; };
  EXPECT_GE(optima_found(kCases, nodes, false), kCases * 8 / 10);
}

TEST(WireSearch, FindsTheCheapestOfAllPlacementsByTwoPrices) {
  const auto prices = [](uint32_t) { return Topology::with_two_prices({0, 0, 1, 1}, 1, 6); };
  EXPECT_GE(optima_found(kCases / 2, prices, false), kCases / 2 * 6 / 10);
  EXPECT_GE(optima_found(kCases / 2, prices, true), kCases / 2 * 4 / 10);
}

TEST(WireSearch, FindsTheCheapestOfAllPlacementsByAMatrixOfPrices) {
  const auto prices = [](uint32_t seed) {
    std::mt19937 random(seed);
    Topology topology;
    for (int cell = 0; cell < 16; ++cell)
      topology.prices.push_back(cell % 5 == 0 ? 0 : static_cast<double>(1 + random() % 9));
    if (seed % 2 == 0) topology.node_of_rank = {0, 0, 1, 1};
    return topology;
  };
  EXPECT_GE(optima_found(kCases / 2, prices, false), kCases / 2 * 6 / 10);
  EXPECT_GE(optima_found(kCases / 2, prices, true), kCases / 2 * 4 / 10);
}

TEST(WireSearch, TakesAllSourcesForOneWhereRanksAreVeryMany) {
  constexpr int kRanks = 256, kExperts = 512;  // 64 nodes x 256 ranks are too many bits
  std::vector<int32_t> nodes, start;
  for (int r = 0; r < kRanks; ++r) nodes.push_back(r / 4);
  for (int e = 0; e < kExperts; ++e) start.push_back(e);
  const Topology topology = Topology::with_two_prices(nodes, 1, 10);
  const TokenSample tokens = topical_tokens(kExperts, 4, 64, 400, 5);
  const std::vector<std::vector<double>> window = {std::vector<double>(kExperts, 1)};
  const std::vector<int32_t> first = equal_slots(kRanks, 2);
  const std::vector<int32_t> found = search_wires({.slots = SlotRanges(first),
                                                   .rules = kNoRules,
                                                   .topology = topology,
                                                   .tokens = tokens,
                                                   .loads = window,
                                                   .max_tokens = 400,
                                                   .steps = 60'000},
                                                  start);
  EXPECT_EQ(std::set<int32_t>(found.begin(), found.end()).size(), cells(kExperts));
  EXPECT_LT(cost_of_copies(found, first, topology, tokens, 0),
            0.95 * cost_of_copies(start, first, topology, tokens, 0));
}

TEST(WireSearch, IsTheSameEachTimeAndKeepsEveryExpert) {
  const std::vector<int32_t> first = equal_slots(12, 4);
  std::vector<int32_t> nodes;
  for (int r = 0; r < 12; ++r) nodes.push_back(r);  // 144 bits: several words
  const Topology topology{.node_of_rank = nodes};
  TokenSample tokens = topical_tokens(40, 4, 5, 500, 7);
  for (int t = 0; t < 500; ++t) tokens.source_rank.push_back(t % 12);
  const std::vector<int64_t> loads = loads_of(tokens);
  const std::vector<std::vector<double>> window = {{loads.begin(), loads.end()}};
  std::vector<int32_t> start;
  for (int s = 0; s < 48; ++s) start.push_back(s % 40);
  const auto search = [&] {
    return search_wires({.slots = SlotRanges(first),
                         .rules = kNoRules,
                         .topology = topology,
                         .tokens = tokens,
                         .loads = window,
                         .slack = 0.01,
                         .max_tokens = 300,
                         .steps = 3'000},
                        start);
  };
  const std::vector<int32_t> found = search();
  EXPECT_EQ(found, search());
  EXPECT_EQ(std::set<int32_t>(found.begin(), found.end()).size(), 40U);
  EXPECT_LE(peak_of(found, first, loads), peak_of(start, first, loads) * 1.01 + 1e-9);
  EXPECT_LT(copies_between_nodes(found, first, nodes, tokens, 0),
            copies_between_nodes(start, first, nodes, tokens, 0));
}

TEST(WireSearch, IsPartOfTrimWhereTokensAndNodesAreKnown) {
  TokenSample tokens = topical_tokens(16, 4, 2, 2'000, 3);
  const Load load{1, 1, 16, loads_of(tokens)};
  const Placement current = default_placement(1, 16, {6, 6, 6, 6});
  Problem problem{.load = load, .current = current, .topology = Topology::even(4, 2)};
  const Plan without = make_policy("trim")->rebalance(problem);
  EXPECT_EQ(without.layers[0].node_copies_before, 0);
  problem.tokens = &tokens;
  const Plan with = make_policy("trim")->rebalance(problem);
  const auto copies = [&](const Placement& placement) {
    return copies_between_nodes(placement.logical(0), placement.first_slots(),
                                problem.topology.node_of_rank, tokens, 0);
  };
  EXPECT_EQ(with.layers[0].node_copies_before, copies(current));
  EXPECT_EQ(with.layers[0].node_copies_after, copies(with.placement));
  EXPECT_LT(copies(with.placement), 0.75 * copies(without.placement));
  EXPECT_LE(with.layers[0].par_after, without.layers[0].par_after * (1 + problem.wire_slack));
  // Prices: cheaper copies are a gain, and both predictions are measured.
  problem.topology = Topology::with_two_prices({0, 0, 1, 1}, 1, 10);
  const Plan priced = make_policy("trim")->rebalance(problem);
  const auto cost = [&](const Placement& placement) {
    return cost_of_copies(placement.logical(0), placement.first_slots(), problem.topology, tokens,
                          0);
  };
  EXPECT_EQ(priced.layers[0].copies_cost_before, cost(current));
  EXPECT_EQ(priced.layers[0].copies_cost_after, cost(priced.placement));
  EXPECT_EQ(priced.layers[0].node_copies_after, copies(priced.placement));
  EXPECT_LT(cost(priced.placement), 0.85 * cost(without.placement));
  EXPECT_LE(cost(priced.placement), 1.02 * cost(with.placement));
  EXPECT_EQ(with.layers[0].copies_cost_after, 0);
  problem.wire_slack = -1;
  EXPECT_ANY_THROW(make_policy("trim")->rebalance(problem));
}

TEST(WireSearch, KeepsTheSingleStepsOfAWindowLevelToo) {
  constexpr int kSteps = 32, kTokens = 64, kExperts = 32;
  const TokenSample tokens = topical_tokens(kExperts, 4, 4, kSteps * kTokens, 11);
  Load load{kSteps, 1, kExperts, std::vector<int64_t>(cells(kSteps, kExperts))};
  for (size_t i = 0; i < tokens.ids.size(); ++i)
    ++load.counts[i / (4 * kTokens) * kExperts + cells(tokens.ids[i])];
  const Placement current = default_placement(1, kExperts, std::vector<int>(8, 6));
  Problem problem{.load = load, .current = current, .topology = Topology::even(8, 2)};
  const Plan without = make_policy("trim")->rebalance(problem);
  problem.tokens = &tokens;
  problem.wire_slack = 0.01;
  const Plan with = make_policy("trim")->rebalance(problem);
  EXPECT_LT(with.layers[0].node_copies_after,
            copies_between_nodes(without.placement.logical(0), without.placement.first_slots(),
                                 problem.topology.node_of_rank, tokens, 0));
  EXPECT_LE(with.layers[0].par_step_after, without.layers[0].par_step_after * 1.02);
}

}  // namespace
}  // namespace trimtab
