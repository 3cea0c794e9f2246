// SPDX-License-Identifier: Apache-2.0
#include "live/screening.h"

#include <gtest/gtest.h>

#include "trimtab/error.h"

namespace trimtab {
namespace {

using enum Balancer::Verdict;

// Two ranks of two slots. Experts 0 and 1 get all tokens: on one rank, or one on each.
const Placement kTogether(1, 4, {2, 2}, {0, 1, 2, 3});
const Placement kApart(1, 4, {2, 2}, {0, 2, 1, 3});

Load busy(int64_t parts) {
  Load load{parts, 1, 4, {}};
  for (int64_t part = 0; part < parts; ++part) {
    for (const int64_t tokens : {10, 10, 0, 0}) load.counts.push_back(tokens);
  }
  return load;
}

// As the Balancer does it.
Screening::Gains measure(Screening& screening, const Placement& now, int64_t parts = 2) {
  const Load load = busy(parts), none;
  const Screening::Gains gains =
      screening.measure(now, {load, none}, {.sharing = SplitRule::kRoundRobin});
  screening.take(gains);
  return gains;
}

TEST(Screening, AnAppliedPlanIsMeasuredOnceAgainstThePlacementBeforeIt) {
  Screening screening;
  EXPECT_FALSE(measure(screening, kApart).applied);
  screening.note_applied(kTogether);
  EXPECT_FALSE(measure(screening, kApart, 0).applied) << "a window without steps says nothing";
  const auto gains = measure(screening, kApart);
  ASSERT_TRUE(gains.applied);
  EXPECT_DOUBLE_EQ(*gains.applied, 1.0);  // PAR 2 before, 1 after
  EXPECT_FALSE(gains.screened);
  const auto later = measure(screening, kApart);
  EXPECT_FALSE(later.applied);
  EXPECT_DOUBLE_EQ(later.in_force.value(), 1.0);
  screening.note_applied(kApart);
  EXPECT_DOUBLE_EQ(*measure(screening, kTogether).applied, -1.0);
}

TEST(Screening, AScreenedPlanIsMeasuredAgainstThePlacementThatStays) {
  Screening screening;
  screening.note_screened(kApart, 0.7);
  const auto gains = measure(screening, kTogether);
  ASSERT_TRUE(gains.screened);
  EXPECT_DOUBLE_EQ(*gains.screened, 1.0);
  EXPECT_DOUBLE_EQ(gains.screened_predicted, 0.7);
  EXPECT_FALSE(gains.applied);
  EXPECT_FALSE(measure(screening, kTogether).screened);
}

// A load with other layers than the placement has. The Balancer calls the plan failed, and the next
// window measures what comes after it.
TEST(Screening, WhatCannotBeMeasuredIsDropped) {
  Screening screening;
  screening.note_applied(kTogether);
  screening.note_screened(kApart, 0.7);
  const Load wrong{1, 1, 3, {1, 2, 3}}, none;
  EXPECT_THROW(screening.measure(kApart, {wrong, none}, {.sharing = SplitRule::kSplit}),
               InvalidArgument);
  screening.drop();
  const auto gains = measure(screening, kApart);
  EXPECT_FALSE(gains.applied);
  EXPECT_FALSE(gains.screened);
}

TEST(Screening, TheVerdictNeedsEvidence) {
  Screening screening;
  EXPECT_EQ(screening.verdict(0.01), kNotEnoughEvidence);
  screening.note_screened(kApart, 1);
  measure(screening, kTogether, 7);
  EXPECT_EQ(screening.verdict(0.01), kNotEnoughEvidence);
  screening.note_screened(kApart, 1);
  measure(screening, kTogether, 7);
  EXPECT_EQ(screening.verdict(0.01), kRecommended);
  EXPECT_EQ(screening.verdict(1.5), kNotRecommended);
}

TEST(Screening, APlanThatMakesThingsWorseIsNotRecommended) {
  Screening screening;
  screening.note_screened(kTogether, 1);
  measure(screening, kApart, 16);
  EXPECT_EQ(screening.verdict(0.01), kNotRecommended);
}

}  // namespace
}  // namespace trimtab
