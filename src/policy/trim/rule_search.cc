// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/rule_search.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/cat.h"
#include "base/random.h"
#include "policy/layer_placement.h"
#include "policy/matrix.h"
#include "policy/trim/mutable_layer.h"
#include "policy/trim/node_search.h"
#include "policy/trim/slot_exchanges.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Chooses how many replicas each node has of each expert, and gives them slots.
class Dealer {
 public:
  explicit Dealer(const RuleTask& task)
      : task_(task),
        nodes_(task.topology.num_nodes()),
        loads_(task.loads[0]),
        ranks_of_(cells(nodes_)),
        room_(cells(nodes_)),
        replicas_(cells(task.num_experts)),
        on_node_(task.num_experts, nodes_, 0) {
    for (int rank = 0; rank < task.slots.num_ranks(); ++rank) {
      ranks_of_[cells(task.topology.node(rank))].push_back(rank);
      room_[cells(task.topology.node(rank))] += task.slots.count(rank);
    }
  }

  std::vector<int32_t> deal() {
    if (task_.rules.groups_on_nodes) {
      place_groups();
    } else if (task_.rules.even_replicas) {
      place_evenly();
    } else {
      place_everywhere();
    }
    std::vector<int32_t> placement(cells(task_.slots.num_slots()));
    for (int node = 0; node < nodes_; ++node) fill_node(node, placement);
    return placement;
  }

 private:
  int experts() const { return task_.num_experts; }
  int ranks(int node) const { return static_cast<int>(std::ssize(ranks_of_[cells(node)])); }
  double load_of_replica(int32_t e) const {
    return loads_[cells(e)] / std::max(1, replicas_[cells(e)]);
  }
  void add(int32_t e, int node) {
    ++replicas_[cells(e)];
    ++on_node_(e, node);
    --room_[cells(node)];
  }

  // The expert whose replicas carry most, of those that may(e) allows; -1 if there is none.
  template <class May>
  int32_t busiest(May may) const {
    int32_t best = -1;
    for (int32_t e = 0; e < experts(); ++e) {
      if (may(e) && (best < 0 || load_of_replica(e) > load_of_replica(best))) best = e;
    }
    return best;
  }

  // Replicas for the slots of a node that are left: of experts that are on it, and where no rank
  // needs to hold one twice while there are others.
  void fill_up(int node) {
    while (room_[cells(node)] > 0) {
      int32_t e = busiest(
          [&](int32_t x) { return on_node_(x, node) > 0 && on_node_(x, node) < ranks(node); });
      if (e < 0) e = busiest([&](int32_t x) { return on_node_(x, node) > 0; });
      if (e < 0)
        throw InvalidArgument(cat("the rule groups leaves node ", node, " without experts"));
      add(e, node);
    }
  }

  // Whole groups go where least load is for each slot, the busiest group first.
  void place_groups() {
    const int in_group = experts() / task_.num_groups;
    const auto load = [&](int32_t group) {
      const auto first = loads_.begin() + group * in_group;
      return std::accumulate(first, first + in_group, 0.0);
    };
    std::vector<double> sum(cells(nodes_));
    const std::vector<int32_t> slots = room_;
    const auto by_load = [&](int32_t a, int32_t b) { return load(a) > load(b); };
    for (const int32_t group : sorted_ids(task_.num_groups, by_load)) {
      const auto share = [&](int node) { return sum[cells(node)] / slots[cells(node)]; };
      int best = -1;
      for (int node = 0; node < nodes_; ++node) {
        if (room_[cells(node)] >= in_group && (best < 0 || share(node) < share(best))) best = node;
      }
      sum[cells(best)] += load(group);
      for (int i = 0; i < in_group; ++i) add(group * in_group + i, best);
    }
    for (int node = 0; node < nodes_; ++node) fill_up(node);
  }

  void place_everywhere() {
    for (int node = 0; node < nodes_; ++node) {
      for (int32_t e = 0; e < experts(); ++e) add(e, node);
    }
    for (int node = 0; node < nodes_; ++node) fill_up(node);
  }

  // Replicas are dealt to the nodes in turn, those of an expert one after the other. All nodes have
  // equally many slots.
  void place_evenly() {
    std::vector<int32_t> number(cells(experts()), task_.rules.all_experts_on_nodes ? nodes_ : 1);
    const auto share = [&](int32_t e) { return loads_[cells(e)] / number[cells(e)]; };
    for (int64_t used = int64_t{number[0]} * experts(); used < task_.slots.num_slots(); ++used) {
      int32_t best = -1;
      const auto full = [&](int32_t e) { return number[cells(e)] >= task_.slots.num_ranks(); };
      for (int32_t e = 0; e < experts(); ++e) {
        if (best < 0 || std::pair(full(e), -share(e)) < std::pair(full(best), -share(best)))
          best = e;
      }
      ++number[cells(best)];
    }
    int node = 0;
    for (const int32_t e :
         sorted_ids(experts(), [&](int32_t a, int32_t b) { return share(a) > share(b); })) {
      for (int i = 0; i < number[cells(e)]; ++i) {
        add(e, node);
        node = (node + 1) % nodes_;
      }
    }
  }

  // Experts with most replicas come first, to the ranks with most room, so that no rank has to hold
  // one twice while there is another way; single replicas go where the load is least.
  void fill_node(int node, std::vector<int32_t>& placement) const {
    const std::vector<int32_t>& of_node = ranks_of_[cells(node)];
    std::vector<int32_t> used(of_node.size());
    std::vector<double> sum(of_node.size());
    const auto before = [&](int32_t a, int32_t b) {
      return std::pair(on_node_(a, node), load_of_replica(a)) >
             std::pair(on_node_(b, node), load_of_replica(b));
    };
    for (const int32_t e : sorted_ids(experts(), before)) {
      std::vector<bool> holds(of_node.size());
      for (int i = 0; i < on_node_(e, node); ++i) {
        const auto room = [&](size_t r) { return task_.slots.count(of_node[r]) - used[r]; };
        const auto key = [&](size_t r) {
          return std::tuple(room(r) == 0, bool{holds[r]}, on_node_(e, node) > 1 ? -room(r) : 0,
                            sum[r]);
        };
        size_t best = 0;
        for (size_t r = 1; r < of_node.size(); ++r) {
          if (key(r) < key(best)) best = r;
        }
        placement[cells(task_.slots.first(of_node[best]) + used[best]++)] = e;
        sum[best] += load_of_replica(e);
        holds[best] = true;
      }
    }
  }

  const RuleTask& task_;
  const int nodes_;
  const std::vector<double>& loads_;
  std::vector<std::vector<int32_t>> ranks_of_;  // [nodes]
  std::vector<int32_t> room_;                   // [nodes] slots without a replica
  std::vector<int32_t> replicas_;               // [experts]
  Matrix<int32_t> on_node_;                     // [experts, nodes] replicas
};

}  // namespace

std::vector<int32_t> first_by_rules(const RuleTask& task) {
  return Dealer(task).deal();
}

std::vector<int32_t> search_by_rules(const RuleTask& task) {
  const RuleKeeper keeper(task.rules, task.num_groups);
  std::vector<int32_t> best;
  double least = 0;
  const auto search = [&](std::vector<int32_t> start, uint64_t seed) {
    MutableLayer layer(task.slots, task.topology, task.num_experts, task.loads, task.current,
                       std::move(start));
    SlotExchanges exchanges(layer, split_mix64(static_cast<uint64_t>(task.layer)) + seed);
    search_nodes(layer, nullptr, exchanges,
                 {.limits = {},
                  .rules = keeper,
                  .move_price = task.move_price,
                  .steps = task.steps,
                  .stop = task.stop});
    const double cost = layer.window_peak() + layer.runs_peak() + task.move_price * layer.moves();
    if (!best.empty() && cost >= least) return;
    best = layer.placement();
    least = cost;
  };
  const bool is_kept =
      !task.current.empty() && broken_rule(task.rules, task.num_groups, task.num_experts,
                                           task.current, task.slots.firsts(), task.topology)
                                   .empty();
  if (is_kept) search(to_vector(task.current), 0);
  // Rules leave small layers few ways from one placement to another.
  constexpr int kSmallSlots = 64;
  constexpr uint64_t kStartsOfSmall = 4;
  const uint64_t starts = task.slots.num_slots() <= kSmallSlots ? kStartsOfSmall : 1;
  const std::vector<int32_t> first = first_by_rules(task);
  for (uint64_t seed = 1; seed <= starts; ++seed) search(first, seed);
  return best;
}

}  // namespace trimtab
