// SPDX-License-Identifier: Apache-2.0
// Measures plans on steps that they were not made from. A plan that was applied is measured on the
// window after its last switch; a plan that was only screened, on the window after it was made.
// Screened plans together give a verdict on whether balancing would pay.
#pragma once

#include <optional>
#include <vector>

#include "trimtab/balancer.h"

namespace trimtab {

class Screening {
 public:
  // Measured gains; a gain is PAR before less PAR after, as in BalanceEvent.
  struct Gains {
    std::optional<double> applied;   // of the plan that was applied since the last window
    std::optional<double> screened;  // of the plan that was screened since the last window
    double screened_predicted = 0;   // what the screened plan had promised
  };

  // A plan has been applied: the next window is measured against the placement from before it.
  void note_applied(Placement before) { before_ = std::move(before); }
  // A plan has been made that is not applied; it promises `predicted`.
  void note_screened(Placement proposed, double predicted);
  // Measures on this window what has been noted. A window without steps measures nothing, and the
  // next one is tried. Throws what the estimate of rank loads throws; then what was noted is
  // dropped.
  Gains measure(const Placement& current, const Load& window, SplitRule rule,
                const Topology& topology);

  // What the screened plans together say of a gain of at least `wanted`.
  Balancer::Verdict verdict(double wanted) const;

 private:
  std::optional<Placement> before_, proposed_;
  double predicted_ = 0;
  std::vector<double> screened_gains_;  // of each part of each window that screened a plan
};

}  // namespace trimtab
