// SPDX-License-Identifier: Apache-2.0
// Learns for how many windows plans bring what they promise.
#pragma once

namespace trimtab {

class PlanLife {
 public:
  // windows: what is expected before any plan has been measured.
  explicit PlanLife(double windows) : expected_(windows) {}

  // A plan that promises this gain is in force from now on, in place of the one before.
  void begin(double predicted);
  // The gain of the plan in force on one more window.
  void measured(double realised);

  // So many windows of its promised gain a plan is expected to bring in all: half is what the last
  // plan brought, a quarter the one before, and so on. A plan that is in force and has brought more
  // already counts as it is.
  double windows() const;

 private:
  double expected_;
  double predicted_ = 0;  // of the plan in force; 0: there is none
  double brought_ = 0;    // in windows of the predicted gain
  bool is_measured_ = false;
};

}  // namespace trimtab
