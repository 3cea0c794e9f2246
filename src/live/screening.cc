// SPDX-License-Identifier: Apache-2.0
#include "live/screening.h"

#include <utility>

#include "live/gate.h"
#include "trimtab/par.h"

namespace trimtab {

void Screening::note_screened(Placement proposed, double predicted) {
  proposed_ = std::move(proposed);
  predicted_ = predicted;
}

Screening::Gains Screening::measure(const Placement& current, const Load& window,
                                    SplitRule rule) const {
  Gains found;
  if (window.num_steps == 0) return found;
  if (before_) found.applied = mean_of(gains(changed_layers(*before_, current, window, rule)));
  if (proposed_) {
    found.screened_parts = gains(changed_layers(current, *proposed_, window, rule));
    found.screened = mean_of(found.screened_parts);
    found.screened_predicted = predicted_;
  }
  return found;
}

void Screening::take(const Gains& measured) {
  if (measured.applied) before_.reset();
  if (!measured.screened) return;
  proposed_.reset();
  screened_gains_.insert(screened_gains_.end(), measured.screened_parts.begin(),
                         measured.screened_parts.end());
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
