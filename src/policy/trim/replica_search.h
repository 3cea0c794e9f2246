// SPDX-License-Identifier: Apache-2.0
// This search chooses numbers of replicas where slots are tight. With two or three slots a rank,
// the peak depends on which experts get the spare slots, and giving each to the largest load per
// replica is far from the best.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

struct ReplicaSearchEffort {
  bool all_families = true;  // false: a sixth of them
  // Packings tried beyond the families; twice as many of pairs, which are packed sooner.
  int iterations = 1000;
  double target = 1.001;  // a peak, in mean rank loads, that is good enough
  // The search shows its best replicas so far to this function now and then, and ends when it
  // returns true. LPT is coarse, so replicas may be good enough before their packing is.
  std::function<bool(const std::vector<int32_t>& replicas)> good_enough = {};
};

// Returns replicas among the searched slots for the loads of episode 0: [experts], which sum to the
// slots. It tries families of the form "as few replicas as keep every one at most theta, the rest
// to the largest replicas that are at most phi", and then exchanges single replicas. A packing that
// takes microseconds gives each try its score: the largest replica with the smallest where every
// rank has two slots, which is optimal; LPT otherwise.
std::vector<int32_t> search_replicas(const LayerTask& task, const ReplicaSearchEffort& effort,
                                     uint64_t seed);

}  // namespace trimtab
