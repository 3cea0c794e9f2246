// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/slot_exchanges.h"

#include <cmath>
#include <limits>

#include "policy/layer_placement.h"

namespace trimtab {

bool SlotExchanges::two_slots() {
  const int slots = layer_.slots().num_slots();
  const int slot = below(slots);
  return exchange(slot, below(slots));
}

bool SlotExchanges::two_slots_alike() {
  constexpr int kDraws = 3;
  const int slots = layer_.slots().num_slots();
  const int slot = below(slots);
  const float load = layer_.load_of_replica(layer_.expert(slot));
  int alike = -1;
  float least = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kDraws; ++i) {
    const int other = below(slots);
    const float apart = std::abs(load - layer_.load_of_replica(layer_.expert(other)));
    if (layer_.rank_of(slot) == layer_.rank_of(other) ||
        layer_.expert(slot) == layer_.expert(other) || apart >= least)
      continue;
    least = apart;
    alike = other;
  }
  return alike >= 0 && exchange(slot, alike);
}

bool SlotExchanges::two_slots_of_node() {
  const int slots = layer_.slots().num_slots();
  const int slot = below(slots), other = below(slots);
  return layer_.node_of(slot) == layer_.node_of(other) && exchange(slot, other);
}

bool SlotExchanges::exchange(int slot, int other) {
  const int a = layer_.rank_of(slot), b = layer_.rank_of(other);
  const int32_t e = layer_.expert(slot), f = layer_.expert(other);
  if (a == b || e == f || layer_.holds(b, e) || layer_.holds(a, f)) return false;
  changes_.assign({{slot, f}, {other, e}});
  return true;
}

bool SlotExchanges::replica() {
  const int slot = below(layer_.slots().num_slots());
  const int32_t f = below(layer_.num_experts());
  if (layer_.replicas(layer_.expert(slot)) < 2 || layer_.holds(layer_.rank_of(slot), f))
    return false;
  changes_.assign({{slot, f}});
  return true;
}

bool SlotExchanges::two_ranks() {
  const SlotRanges slots = layer_.slots();
  const int a = below(layer_.ranks()), b = below(layer_.ranks());
  if (a == b || slots.count(a) != slots.count(b)) return false;
  changes_.clear();
  for (int i = 0; i < slots.count(a); ++i) {
    const int s = slots.first(a) + i, t = slots.first(b) + i;
    changes_.push_back({s, layer_.expert(t)});
    changes_.push_back({t, layer_.expert(s)});
  }
  return true;
}

bool SlotExchanges::two_groups(int num_groups) {
  const int in_group = layer_.num_experts() / num_groups;
  const int g = below(num_groups), h = below(num_groups);
  const auto node = [&](int group) { return layer_.node_of(layer_.slots_of(group * in_group)[0]); };
  if (node(g) == node(h)) return false;
  const auto by_load = [&](int group) {
    return sorted_ids(in_group, [&](int32_t a, int32_t b) {
      return layer_.load(group * in_group + a) > layer_.load(group * in_group + b);
    });
  };
  const std::vector<int32_t> of_g = by_load(g), of_h = by_load(h);
  changes_.clear();
  for (int i = 0; i < in_group; ++i) {
    const int32_t e = g * in_group + of_g[cells(i)], f = h * in_group + of_h[cells(i)];
    for (const int32_t slot : layer_.slots_of(e)) changes_.push_back({slot, f});
    for (const int32_t slot : layer_.slots_of(f)) changes_.push_back({slot, e});
  }
  return true;
}

}  // namespace trimtab
