// SPDX-License-Identifier: Apache-2.0
#include "policy/deepseek.h"

#include <algorithm>
#include <numeric>

#include "policy/frame.h"
#include "policy/policies.h"

namespace trimtab {
namespace {

// Items of each pack, in the order they were put there. capacities sum to the number of items.
std::vector<std::vector<int32_t>> pack(std::span<const float> weights,
                                       std::span<const int32_t> capacities) {
  std::vector<std::vector<int32_t>> packs(capacities.size());
  std::vector<int32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  if (std::all_of(capacities.begin(), capacities.end(), [](int32_t c) { return c == 1; })) {
    for (const int32_t item : order) packs[item].push_back(item);
    return packs;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return weights[a] > weights[b]; });
  std::vector<float> sums(capacities.size(), 0.0f);
  for (const int32_t item : order) {
    size_t lightest = capacities.size();
    for (size_t p = 0; p < capacities.size(); ++p) {
      if (packs[p].size() >= static_cast<size_t>(capacities[p])) continue;
      if (lightest == capacities.size() || sums[p] < sums[lightest]) lightest = p;
    }
    packs[lightest].push_back(item);
    sums[lightest] += weights[item];
  }
  return packs;
}

// Copies of each item so that all together are `total`: every further copy goes to the largest
// share.
std::vector<int32_t> replicate(std::span<const float> weights, size_t total,
                               std::vector<int32_t>& items) {
  std::vector<int32_t> copies(weights.size(), 1);
  items.resize(weights.size());
  std::iota(items.begin(), items.end(), 0);
  while (items.size() < total) {
    size_t heaviest = 0;
    for (size_t i = 1; i < weights.size(); ++i) {
      if (weights[i] / static_cast<float>(copies[i]) >
          weights[heaviest] / static_cast<float>(copies[heaviest]))
        heaviest = i;
    }
    items.push_back(static_cast<int32_t>(heaviest));
    ++copies[heaviest];
  }
  return copies;
}

struct Node {
  std::vector<int32_t> ranks;       // ascending
  std::vector<int32_t> capacities;  // [ranks] slots
  std::vector<int32_t> experts;     // in the order of their groups
  size_t num_slots() const {
    return static_cast<size_t>(std::accumulate(capacities.begin(), capacities.end(), 0));
  }
};

std::vector<Node> make_nodes(std::span<const int32_t> first_slots, const Topology& topology,
                             int num_nodes) {
  std::vector<Node> nodes(num_nodes);
  for (size_t r = 0; r + 1 < first_slots.size(); ++r) {
    Node& node =
        nodes[num_nodes == 1 ? 0 : static_cast<size_t>(topology.node(static_cast<int>(r)))];
    node.ranks.push_back(static_cast<int32_t>(r));
    node.capacities.push_back(first_slots[r + 1] - first_slots[r]);
  }
  return nodes;
}

void pack_groups(std::span<const int64_t> load, int num_groups, std::vector<Node>& nodes) {
  const size_t group_size = load.size() / static_cast<size_t>(num_groups);
  std::vector<float> weights;
  for (size_t g = 0; g < static_cast<size_t>(num_groups); ++g) {
    const std::span<const int64_t> group = load.subspan(g * group_size, group_size);
    float sum = 0;
    for (const int64_t w : group) sum += static_cast<float>(w);
    weights.push_back(sum);
  }
  const std::vector<int32_t> each(nodes.size(), num_groups / static_cast<int32_t>(nodes.size()));
  const std::vector<std::vector<int32_t>> packs = pack(weights, each);
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (const int32_t g : packs[n]) {
      for (size_t i = 0; i < group_size; ++i) {
        nodes[n].experts.push_back(static_cast<int32_t>(static_cast<size_t>(g) * group_size + i));
      }
    }
  }
}

void fill_node(const Node& node, std::span<const int64_t> load,
               std::span<const int32_t> first_slots, std::span<int32_t> map) {
  std::vector<float> weights;
  for (const int32_t e : node.experts) weights.push_back(static_cast<float>(load[e]));
  std::vector<int32_t> replicas;  // indices into node.experts
  const std::vector<int32_t> copies = replicate(weights, node.num_slots(), replicas);
  std::vector<float> shares;
  for (const int32_t i : replicas) {
    shares.push_back(weights[i] / static_cast<float>(copies[i]));
  }
  const std::vector<std::vector<int32_t>> packs = pack(shares, node.capacities);
  for (size_t p = 0; p < packs.size(); ++p) {
    auto slot = static_cast<size_t>(first_slots[node.ranks[p]]);
    for (const int32_t item : packs[p]) {
      map[slot++] = node.experts[static_cast<size_t>(replicas[item])];
    }
  }
}

class DeepseekPolicy final : public Policy {
 public:
  explicit DeepseekPolicy(bool keep_slots) : keep_slots_(keep_slots) {}

  std::string_view name() const override { return "deepseek"; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    std::vector<int32_t> proposal;
    for (int layer = 0; layer < problem.load.num_layers; ++layer) {
      const std::vector<int32_t> map =
          deepseek_map(window_load(problem.load, layer), problem.current.first_slots(),
                       problem.topology, problem.num_groups);
      proposal.insert(proposal.end(), map.begin(), map.end());
    }
    return finish_plan(problem, std::move(proposal),
                       {.align_ranks = false, .align_slots = keep_slots_, .require_gain = false});
  }

 private:
  bool keep_slots_;
};

}  // namespace

std::vector<int32_t> deepseek_map(std::span<const int64_t> load,
                                  std::span<const int32_t> first_slots, const Topology& topology,
                                  int num_groups) {
  const bool hierarchical = num_groups % topology.num_nodes() == 0;
  int groups = hierarchical ? num_groups : 1;
  std::vector<Node> nodes =
      make_nodes(first_slots, topology, hierarchical ? topology.num_nodes() : 1);
  const size_t experts_per_node = load.size() / nodes.size();
  if (std::any_of(nodes.begin(), nodes.end(),
                  [&](const Node& n) { return n.num_slots() < experts_per_node; })) {
    groups = 1;
    nodes = make_nodes(first_slots, topology, 1);
  }
  pack_groups(load, groups, nodes);
  std::vector<int32_t> map(first_slots.back());
  for (const Node& node : nodes) fill_node(node, load, first_slots, map);
  return map;
}

std::unique_ptr<Policy> make_deepseek_policy(const PolicyOptions& options) {
  return std::make_unique<DeepseekPolicy>(options.keep_slots);
}

}  // namespace trimtab
