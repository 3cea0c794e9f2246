// SPDX-License-Identifier: Apache-2.0
// Search over the numbers of copies where slots are tight: with two or three slots a rank, which
// experts get the spare slots decides the peak, and giving each to the largest load per copy is far
// from the best.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

struct CopySearchEffort {
  bool all_families = true;  // or a sixth of them
  int iterations =
      1000;  // packings tried beyond the families; of pairs, which are cheaper, twice as many
  double target = 1.001;  // peak in mean rank loads that is good enough
  // Asked now and then, of the best copies so far: true ends the search. LPT is coarse, so copies
  // may be good enough before their packing is.
  std::function<bool(const std::vector<int32_t>& copies)> good_enough = {};
};

// Copies among the searched slots for the loads of episode 0: [experts], sum = slots. Tries the
// families "as few copies as keep every replica <= theta, the rest to the largest replicas that are
// <= phi", then exchanges single copies, scored by a packing that takes microseconds (the largest
// with the smallest where every rank has two slots, which is optimal; LPT otherwise).
std::vector<int32_t> search_copies(const LayerTask& task, const CopySearchEffort& effort,
                                   uint64_t seed);

}  // namespace trimtab
