// SPDX-License-Identifier: Apache-2.0
#include "dispatch/collective_exchange.h"

#include <algorithm>
#include <memory>

#include "trimtab/error.h"

namespace trimtab {

CollectiveExchange::CollectiveExchange(const RankShape& shape, const Request& request, Lane& lane,
                                       const TermsMemory& memory)
    : StagedExchange(shape, request, lane), memory_(memory) {
  std::construct_at(memory_.own, with_request(shape.terms, request));
  terms_ = comm_.all_gather_v(std::as_bytes(std::span(memory_.own, 1)),
                              std::as_writable_bytes(memory_.all), memory_.all_bytes);
}

bool CollectiveExchange::come_to(Stage stage, bool block) {
  if (stage == Stage::kArrived && !agree(block)) return false;
  return go_to(stage, block) && (stage != Stage::kDrained || released(terms_, block));
}

bool CollectiveExchange::agree(bool block) {
  if (progress_ == Progress::kGathering) {
    if (!done(terms_, block)) return false;
    const auto other = std::ranges::find_if(
        memory_.all, [this](const Terms& terms) { return terms != *memory_.own; });
    if (other == memory_.all.end()) {
      progress_ = Progress::kAgreed;
    } else {
      other_ = static_cast<int>(other - memory_.all.begin());
      rest_ = start_the_rest();
      progress_ = Progress::kDiffer;
    }
  }
  if (progress_ == Progress::kAgreed) return true;
  try {
    if (!finish_together(block)) return false;
    end_on_all_ranks();
  } catch (const CommError&) {  // the group has failed; what this rank knows says more
  }
  throw_difference(shape_.dispatcher_name, shape_.rank, *memory_.own, other_, memory_.all[other_]);
}

// Returns true when every rank has found the difference and nobody reads this rank's memory: no
// rank has to abort, and the group can go on.
bool CollectiveExchange::finish_together(bool block) {
  // First all must know: ranks of different dispatchers fail the group when they go on.
  if (!released(terms_, block)) return false;
  while (progress_ == Progress::kDiffer) {
    try {
      if (!done(rest_, block)) return false;
      farewell_ = comm_.all_gather_v({}, {}, memory_.all_bytes);
      progress_ = Progress::kLeaving;
    } catch (const InvalidArgument&) {
      // A block of another shape that does not fit; it counts as done.
    }
  }
  return done(farewell_, block) && released(rest_, block) && released(farewell_, block);
}

}  // namespace trimtab
