// SPDX-License-Identifier: Apache-2.0
#include "load/drift.h"

#include <gtest/gtest.h>

namespace trimtab {
namespace {

// Two steps, one layer, four experts.
const Load kTwoSteps{2, 1, 4, {6, 2, 0, 0, 0, 2, 4, 2}};

TEST(Drift, IsThePartThatWentElsewhere) {
  const Drift one = drift(kTwoSteps, 0, 1);
  EXPECT_DOUBLE_EQ(one.mean, 0.75);  // shares .75 .25 0 0 -> 0 .25 .5 .25
  EXPECT_DOUBLE_EQ(one.worst, 0.75);
  const Drift three = drift({5, 1, 2, {4, 0, 2, 2, 2, 2, 4, 0, 9, 9}}, 0,
                            2);  // .75 .25 -> .75 .25, the fifth left out
  EXPECT_DOUBLE_EQ(three.mean, 0);
}

}  // namespace
}  // namespace trimtab
