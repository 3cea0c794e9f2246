// SPDX-License-Identifier: Apache-2.0
#include "live/screening.h"

#include <utility>

#include "live/planner.h"
#include "trimtab/par.h"

namespace trimtab {

void Screening::note_screened(Placement proposed, double predicted) {
  proposed_ = std::move(proposed);
  predicted_ = predicted;
}

Screening::Gains Screening::measure(const Placement& current, const Load& window, SplitRule rule,
                                    const Topology& topology) {
  Gains found;
  if (window.num_steps == 0) return found;
  const auto before = std::exchange(before_, std::nullopt);
  const auto proposed = std::exchange(proposed_, std::nullopt);
  if (before) found.applied = mean_of(gains(*before, current, window, rule, topology));
  if (proposed) {
    const std::vector<double> parts = gains(current, *proposed, window, rule, topology);
    screened_gains_.insert(screened_gains_.end(), parts.begin(), parts.end());
    found.screened = mean_of(parts);
    found.screened_predicted = predicted_;
  }
  return found;
}

Balancer::Verdict Screening::verdict(double wanted) const {
  using enum Balancer::Verdict;
  constexpr size_t kLeastEvidence = 8;
  if (screened_gains_.size() < kLeastEvidence) return kNotEnoughEvidence;
  const double high = upper_95(screened_gains_);
  const double low = 2 * mean_of(screened_gains_) - high;
  if (low >= wanted) return kRecommended;
  return high < wanted ? kNotRecommended : kNotEnoughEvidence;
}

}  // namespace trimtab
