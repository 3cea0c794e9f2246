// SPDX-License-Identifier: Apache-2.0
#include "policy/deepseek.h"

#include <algorithm>
#include <numeric>

#include "base/cat.h"
#include "policy/frame.h"
#include "policy/layer_placement.h"
#include "policy/policies.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// The reference computes with float32.
float to_float(int64_t load) {
  return static_cast<float>(load);
}

// The first position of the largest value.
int32_t position_of_max(std::span<const float> values) {
  int32_t best = 0;
  for (int32_t i = 1; i < std::ssize(values); ++i) {
    if (values[i] > values[best]) best = i;
  }
  return best;
}

// The items of each pack, in the order they were put there. capacities sum to the number of items.
std::vector<std::vector<int32_t>> pack(std::span<const float> weights,
                                       std::span<const int32_t> capacities) {
  std::vector<std::vector<int32_t>> packs(capacities.size());
  if (std::ranges::all_of(capacities, [](int32_t c) { return c == 1; })) {
    for (int32_t item = 0; item < std::ssize(weights); ++item) packs[item].push_back(item);
    return packs;
  }
  const auto heavier = [&](int32_t a, int32_t b) { return weights[a] > weights[b]; };
  std::vector<float> sums(capacities.size(), 0.0F);
  for (const int32_t item : sorted_ids(std::ssize(weights), heavier)) {
    int lightest = -1;
    for (int p = 0; p < std::ssize(packs); ++p) {
      if (std::ssize(packs[p]) >= capacities[p]) continue;
      if (lightest < 0 || sums[p] < sums[lightest]) lightest = p;
    }
    packs[lightest].push_back(item);
    sums[lightest] += weights[item];
  }
  return packs;
}

// Replicas of several items: which item each stands for, and which part of the item's weight it
// carries.
struct Replicas {
  std::vector<int32_t> items;
  std::vector<float> shares;
};

// Gives each item a replica and each further one of `total` to the item with the largest share.
Replicas replicate(std::span<const float> weights, int total) {
  std::vector<float> counts(weights.size(), 1);
  std::vector<float> shares(weights.begin(), weights.end());  // weight / count of each item
  Replicas replicas;
  for (int32_t i = 0; i < std::ssize(weights); ++i) replicas.items.push_back(i);
  while (std::ssize(replicas.items) < total) {
    const int32_t heaviest = position_of_max(shares);
    replicas.items.push_back(heaviest);
    shares[heaviest] = weights[heaviest] / ++counts[heaviest];
  }
  for (const int32_t i : replicas.items) replicas.shares.push_back(shares[i]);
  return replicas;
}

struct Node {
  std::vector<int32_t> ranks;       // ascending
  std::vector<int32_t> capacities;  // [ranks] slots
  std::vector<int32_t> experts;     // in the order of their groups
  int num_slots() const { return std::accumulate(capacities.begin(), capacities.end(), 0); }
};

std::vector<Node> make_nodes(SlotRanges slots, const Topology& topology, int num_nodes) {
  std::vector<Node> nodes(num_nodes);
  for (int r = 0; r < slots.num_ranks(); ++r) {
    Node& node = nodes[num_nodes == 1 ? 0 : topology.node(r)];
    node.ranks.push_back(r);
    node.capacities.push_back(slots.count(r));
  }
  return nodes;
}

void pack_groups(std::span<const int64_t> load, int num_groups, std::vector<Node>& nodes) {
  const Table groups(load, std::ssize(load) / num_groups);
  std::vector<float> weights;
  for (int g = 0; g < num_groups; ++g) {
    float sum = 0;
    for (const int64_t w : groups[g]) sum += to_float(w);
    weights.push_back(sum);
  }
  const int num_nodes = static_cast<int>(nodes.size());
  const std::vector<int32_t> each(num_nodes, num_groups / num_nodes);
  const std::vector<std::vector<int32_t>> packs = pack(weights, each);
  const int group_size = static_cast<int>(groups.cols());
  for (int n = 0; n < num_nodes; ++n) {
    for (const int32_t g : packs[n]) {
      for (int i = 0; i < group_size; ++i) nodes[n].experts.push_back(g * group_size + i);
    }
  }
}

void fill_node(const Node& node, std::span<const int64_t> load, SlotRanges slots,
               std::span<int32_t> placement) {
  std::vector<float> weights;
  for (const int32_t e : node.experts) weights.push_back(to_float(load[e]));
  const Replicas replicas = replicate(weights, node.num_slots());
  const std::vector<std::vector<int32_t>> packs = pack(replicas.shares, node.capacities);
  for (int p = 0; p < std::ssize(packs); ++p) {
    int slot = slots.first(node.ranks[p]);
    for (const int32_t item : packs[p]) {
      placement[slot++] = node.experts[replicas.items[item]];
    }
  }
}

class DeepseekPolicy final : public Policy {
 public:
  explicit DeepseekPolicy(bool keep_slots) : keep_slots_(keep_slots) {}

  std::string_view name() const override { return "deepseek"; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    if (problem.rules.even_replicas || problem.rules.all_experts_on_nodes)
      refuse_rules(problem, name());
    const auto plan_layer = [&](int layer) {
      std::vector<int32_t> placement =
          deepseek_placement(window_load(problem.load, layer), problem.current.first_slots(),
                             problem.topology, problem.num_groups);
      const std::string broken =
          broken_rule(problem.rules, problem.num_groups, problem.load.num_experts, placement,
                      problem.current.first_slots(), problem.topology);
      if (broken.empty()) return placement;
      throw InvalidArgument(cat("deepseek can't keep groups on nodes here, where layer ", layer,
                                " would break that rule: ", broken, "; trim can"));
    };
    return finish_plan(problem, plan_layers(problem, plan_layer),
                       {.align_ranks = false, .align_slots = keep_slots_, .require_gain = false});
  }

 private:
  bool keep_slots_;
};

}  // namespace

std::vector<int32_t> deepseek_placement(std::span<const int64_t> load, SlotRanges slots,
                                        const Topology& topology, int num_groups) {
  const bool hierarchical = num_groups % topology.num_nodes() == 0;
  int groups = hierarchical ? num_groups : 1;
  std::vector<Node> nodes = make_nodes(slots, topology, hierarchical ? topology.num_nodes() : 1);
  const int64_t experts_per_node = std::ssize(load) / std::ssize(nodes);
  if (std::ranges::any_of(nodes, [&](const Node& n) { return n.num_slots() < experts_per_node; })) {
    groups = 1;
    nodes = make_nodes(slots, topology, 1);
  }
  pack_groups(load, groups, nodes);
  std::vector<int32_t> placement(slots.num_slots());
  for (const Node& node : nodes) fill_node(node, load, slots, placement);
  return placement;
}

std::unique_ptr<Policy> make_deepseek_policy(const PolicyOptions& options) {
  return std::make_unique<DeepseekPolicy>(options.keep_slots);
}

}  // namespace trimtab
