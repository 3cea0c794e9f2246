// SPDX-License-Identifier: Apache-2.0
#include "live/plan_life.h"

#include <gtest/gtest.h>

namespace trimtab {
namespace {

TEST(PlanLife, BeginsWithWhatIsExpectedAndLearns) {
  PlanLife life(8);
  EXPECT_EQ(life.windows(), 8);
  life.measured(1);  // no plan is in force
  life.begin(0.2);
  EXPECT_EQ(life.windows(), 8);
  life.measured(0.2);
  life.measured(0.1);
  life.measured(-0.3);  // worse than before the plan
  life.begin(0.1);      // one window and a half
  EXPECT_DOUBLE_EQ(life.windows(), (8 + 1.5) / 2);
  life.begin(0.1);  // the one before was never measured
  EXPECT_DOUBLE_EQ(life.windows(), (8 + 1.5) / 2);
}

TEST(PlanLife, APlanThatHoldsIsExpectedToHold) {
  PlanLife life(2);
  life.begin(0.5);
  for (int window = 0; window < 20; ++window) life.measured(5);
  EXPECT_EQ(life.windows(), 20);
  life.begin(0.5);
  EXPECT_EQ(life.windows(), 11);
}

TEST(PlanLife, PlansThatBringNothingAreSoonExpectedTo) {
  PlanLife life(8);
  for (int plan = 0; plan < 10; ++plan) {
    life.begin(0.5);
    life.measured(0);
  }
  EXPECT_LT(life.windows(), 0.02);
}

}  // namespace
}  // namespace trimtab
