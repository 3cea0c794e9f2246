// SPDX-License-Identifier: Apache-2.0
#include "live/check_parts.h"

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {

void check_parts(const BalancerConfig& config, const Balancer::Parts& parts,
                 const Communicator& comm) {
  check_balancer_config(config);
  const auto check = [](bool fits, const auto&... what) {
    if (!fits) throw InvalidArgument(cat("balancer: ", what...));
  };
  const Placement& placement = parts.placement;
  check(placement.num_ranks() == comm.size(), "the placement is for ", placement.num_ranks(),
        " ranks, there are ", comm.size());
  check(
      parts.topology.node_of_rank.empty() || std::ssize(parts.topology.node_of_rank) == comm.size(),
      "the topology is of ", parts.topology.node_of_rank.size(), " ranks, there are ", comm.size());
  if (config.screen) return;
  check((parts.slots != nullptr) != parts.shares_weights && parts.place != nullptr,
        "to move experts it needs their slots, or ranks that share weights, and whom to tell");
  if (parts.shares_weights) return;
  const ExpertSlots& slots = *parts.slots;
  check(slots.num_layers() == placement.num_layers() &&
            slots.num_slots() == placement.slots_of_rank(comm.rank()),
        "rank ", comm.rank(), " has ", slots.num_layers(), " layers of ", slots.num_slots(),
        " slots, the placement ", placement.num_layers(), " of ",
        placement.slots_of_rank(comm.rank()));
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    for (int s = 0; s < slots.num_slots(); ++s) {
      const int slot = placement.first_slot(comm.rank()) + s;
      const int32_t held = slots.logical(layer, s), wanted = placement.logical(layer)[slot];
      check(held == wanted, "slot ", slot, " of layer ", layer, " holds expert ", held,
            ", the placement says ", wanted);
    }
  }
}

}  // namespace trimtab
