// SPDX-License-Identifier: Apache-2.0
// Random exchanges of experts between the slots of a layer, as the searches for less traffic try
// them one after the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "policy/trim/mutable_layer.h"

namespace trimtab {

class SlotExchanges {
 public:
  // layer must outlive this.
  SlotExchanges(const MutableLayer& layer, uint64_t seed) : layer_(layer), random_(seed) {}

  // Each chooses an exchange that puts no expert twice on a rank, and returns false where the
  // slots that it drew allow none.
  bool two_slots();          // of different ranks change what they hold
  bool two_slots_alike();    // the same, of a few pairs the one whose loads differ the least
  bool two_slots_of_node();  // of different ranks of one node
  bool replica();            // a slot whose expert has other replicas gets another expert
  bool two_ranks();          // with equally many slots change all they hold
  // All replicas of two groups of experts, on different nodes, change places: of the experts with
  // most load, and so on down to the least. num_groups: of neighbouring experts.
  bool two_groups(int num_groups);

  std::span<const SlotChange> changes() const { return changes_; }
  Random& random() { return random_; }

 private:
  int below(int n) { return static_cast<int>(random_.below(static_cast<uint32_t>(n))); }
  bool exchange(int slot, int other);

  const MutableLayer& layer_;
  Random random_;
  std::vector<SlotChange> changes_;
};

}  // namespace trimtab
