// SPDX-License-Identifier: Apache-2.0
// Measures plans on steps that they were not made from. A plan that was applied is measured on the
// window after its last switch; a plan that was only screened, on the window after it was made.
// Screened plans together give a verdict on whether balancing would pay. Measuring takes time in
// proportion to the window, so it stands apart from keeping what was measured: the background
// thread may measure.
#pragma once

#include <optional>
#include <vector>

#include "live/gate.h"
#include "trimtab/balancer.h"

namespace trimtab {

class Screening {
 public:
  // Measured gains; a gain is PAR before less PAR after, as in BalanceEvent.
  struct Gains {
    std::optional<double> in_force;           // of the latest plan that was applied, in each window
    std::optional<double> applied;            // of the plan that was applied since the last window
    std::optional<double> screened;           // of the plan that was screened since the last window
    double screened_predicted = 0;            // what the screened plan had promised
    std::vector<double> screened_parts = {};  // of the screened plan, on each part of the window
  };

  // A plan has been applied: windows are measured against the placement from before it, until the
  // next one is.
  void note_applied(Placement before) {
    before_ = std::move(before);
    is_new_ = true;
  }
  // A plan has been made that is not applied; it promises `predicted`.
  void note_screened(Placement proposed, double predicted);
  // Measures on this window what has been noted; take() must hear of it. A window without steps
  // measures nothing. Throws what the estimate of rank loads throws.
  Gains measure(const Placement& current, const MeasuredSteps& window,
                const Serving& serving) const;
  // What was noted has been measured: the next window measures what is noted until then.
  void take(const Gains& measured);
  // What was noted could not be measured, and no later window tries again.
  void drop() {
    before_.reset();
    proposed_.reset();
    is_new_ = false;
  }

  // What the screened plans together say of a gain of at least `wanted`.
  Balancer::Verdict verdict(double wanted) const;

 private:
  std::optional<Placement> before_, proposed_;
  bool is_new_ = false;  // no window has measured the plan that was applied
  double predicted_ = 0;
  std::vector<double> screened_gains_;  // of each part of each window that screened a plan
};

}  // namespace trimtab
