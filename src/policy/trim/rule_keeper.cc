// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/rule_keeper.h"

#include <algorithm>

namespace trimtab {

bool RuleKeeper::holds(const MutableLayer& layer) const {
  if (!rules_.any()) return true;
  const int in_group = layer.num_experts() / num_groups_;
  for (const int32_t e : layer.touched()) {
    const std::span<const int32_t> replicas = layer.on_node()[e];
    if (rules_.groups_on_nodes) {
      const auto node_of = [&](int32_t expert) { return layer.node_of(layer.slots_of(expert)[0]); };
      const int32_t node = node_of(e), first = e / in_group * in_group;
      if (replicas[cells(node)] != layer.replicas(e)) return false;
      for (int32_t other = first; other < first + in_group; ++other) {
        if (node_of(other) != node) return false;
      }
      continue;
    }
    const auto [least, most] = std::ranges::minmax_element(replicas);
    if (rules_.all_experts_on_nodes && *least == 0) return false;
    if (rules_.even_replicas && *most > *least + 1) return false;
  }
  return true;
}

}  // namespace trimtab
