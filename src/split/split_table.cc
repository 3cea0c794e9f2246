// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/split.h"

namespace trimtab {
namespace {

void check(const Placement& placement, int layer, std::span<const int32_t> node_of_rank) {
  if (layer < 0 || layer >= placement.num_layers()) {
    throw InvalidArgument(cat("layer ", layer, " of a placement of ", placement.num_layers()));
  }
  if (!node_of_rank.empty() && std::ssize(node_of_rank) != placement.num_ranks()) {
    throw InvalidArgument(
        cat(node_of_rank.size(), " nodes given for ", placement.num_ranks(), " ranks"));
  }
  for (size_t r = 0; r < node_of_rank.size(); ++r) {
    if (node_of_rank[r] < 0)
      throw InvalidArgument(cat("rank ", r, " is on node ", node_of_rank[r]));
  }
}

int32_t size_of(const std::vector<int32_t>& values) {
  return static_cast<int32_t>(values.size());
}

// Adds expert e to the graph if several ranks hold it.
void add_shared_expert(int32_t e, SplitTable& table) {
  struct Holder {
    int32_t node, rank, slot;
  };
  std::vector<Holder> holders;
  for (int32_t i = table.first_replica[e]; i < table.first_replica[e + 1]; ++i) {
    const int32_t slot = table.replica_slot[i];
    const int32_t rank = table.rank_of_slot[slot];
    if (!holders.empty() && holders.back().rank == rank) continue;
    holders.push_back({table.node_of_rank[rank], rank, slot});
  }
  if (holders.size() == 1) {
    table.soles.push_back({e, holders.front().slot});
    return;
  }
  std::stable_sort(holders.begin(), holders.end(),
                   [](const Holder& a, const Holder& b) { return a.node < b.node; });
  for (size_t i = 0; i < holders.size(); ++i) {
    if (i == 0 || holders[i].node != holders[i - 1].node) {
      table.first_arc.push_back(size_of(table.arc_slot));
      table.hub_expert.push_back(size_of(table.shared_expert));
      table.hub_node.push_back(holders[i].node);
    }
    table.arc_hub.push_back(size_of(table.hub_expert) - 1);
    table.arc_rank.push_back(holders[i].rank);
    table.arc_slot.push_back(holders[i].slot);
  }
  table.shared_expert.push_back(e);
  table.first_hub.push_back(size_of(table.hub_expert));
}

// Sorts the indices of `key` by key, ascending; first: where each key in [0, num_keys) begins.
void sort_by_key(std::span<const int32_t> key, size_t num_keys, std::vector<int32_t>& first,
                 std::vector<int32_t>& sorted) {
  first.assign(num_keys + 1, 0);
  for (const int32_t k : key) ++first[k + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<int32_t> next(first.begin(), first.end() - 1);
  sorted.resize(key.size());
  for (size_t i = 0; i < key.size(); ++i) {
    sorted[next[key[i]]++] = static_cast<int32_t>(i);
  }
}

// FNV-1a.
uint64_t hash(uint64_t state, std::span<const int32_t> values) {
  for (const uint32_t value : values) state = (state ^ value) * 0x100000001b3;
  return state;
}

// Gives the nodes the numbers 0, 1, ... in the order of their first ranks. Returns how many there
// are.
size_t number_nodes(std::span<const int32_t> nodes, std::vector<int32_t>& node_of_rank) {
  std::vector<int32_t> seen;
  for (size_t r = 0; r < node_of_rank.size(); ++r) {
    const int32_t id = nodes.empty() ? 0 : nodes[r];
    const auto at = std::find(seen.begin(), seen.end(), id);
    node_of_rank[r] = static_cast<int32_t>(at - seen.begin());
    if (at == seen.end()) seen.push_back(id);
  }
  return seen.size();
}

}  // namespace

SplitTable::SplitTable(const Placement& placement, int layer, std::span<const int32_t> nodes)
    : num_ranks(placement.num_ranks()),
      num_experts(placement.num_experts()),
      num_slots(placement.num_slots()) {
  check(placement, layer, nodes);
  node_of_rank.resize(num_ranks);
  const size_t num_nodes = number_nodes(nodes, node_of_rank);
  sort_by_key(node_of_rank, num_nodes, first_node_rank, node_rank);
  for (int r = 0; r < num_ranks; ++r) {
    rank_of_slot.insert(rank_of_slot.end(), placement.slots_of_rank(r), r);
  }
  sort_by_key(placement.logical(layer), num_experts, first_replica, replica_slot);
  for (int r = 0; r < num_ranks; ++r) {
    const std::vector<int32_t> row = placement.log2phy(layer, r);
    static_slot.insert(static_slot.end(), row.begin(), row.end());
  }
  fingerprint =
      hash(hash(hash(0xcbf29ce484222325, placement.logical(layer)), rank_of_slot), node_of_rank);
  first_hub.push_back(0);
  for (int32_t e = 0; e < num_experts; ++e) add_shared_expert(e, *this);
  first_arc.push_back(size_of(arc_slot));
  sort_by_key(arc_rank, num_ranks, first_rank_arc, rank_arc);
}

}  // namespace trimtab
