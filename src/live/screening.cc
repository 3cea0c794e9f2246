// SPDX-License-Identifier: Apache-2.0
#include "live/screening.h"

#include <utility>

#include "trimtab/par.h"

namespace trimtab {

void Screening::note_screened(Placement proposed, double predicted) {
  proposed_ = std::move(proposed);
  predicted_ = predicted;
}

Screening::Gains Screening::measure(const Placement& current, const MeasuredSteps& window,
                                    const Serving& serving) const {
  Gains found;
  if (window.parts.num_steps == 0) return found;
  if (before_) {
    found.in_force = mean_of(gains(changed_layers(*before_, current, window, serving)));
    if (is_new_) found.applied = found.in_force;
  }
  if (proposed_) {
    found.screened_parts = gains(changed_layers(current, *proposed_, window, serving));
    found.screened = mean_of(found.screened_parts);
    found.screened_predicted = predicted_;
  }
  return found;
}

void Screening::take(const Gains& measured) {
  if (measured.applied) is_new_ = false;
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
