// SPDX-License-Identifier: Apache-2.0
#include "live/plan_life.h"

#include <algorithm>

namespace trimtab {

void PlanLife::begin(double predicted) {
  // A plan that no window has measured says nothing.
  if (is_measured_) expected_ = 0.5 * (expected_ + brought_);
  predicted_ = predicted;
  brought_ = 0;
  is_measured_ = false;
}

void PlanLife::measured(double realised) {
  if (!(predicted_ > 0)) return;
  // A window that goes better than promised, by chance or as loads are, promises no more.
  brought_ += std::clamp(realised / predicted_, 0.0, 1.0);
  is_measured_ = true;
}

double PlanLife::windows() const {
  return std::max(expected_, brought_);
}

}  // namespace trimtab
