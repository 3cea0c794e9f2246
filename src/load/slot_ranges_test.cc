// SPDX-License-Identifier: Apache-2.0
#include "trimtab/slot_ranges.h"

#include <gtest/gtest.h>

#include <vector>

namespace trimtab {
namespace {

TEST(SlotRanges, FindsTheOwnerAlsoBesideRanksWithoutSlots) {
  const std::vector<int32_t> firsts = {0, 0, 3, 3, 5};
  const SlotRanges ranges(firsts);
  EXPECT_EQ(ranges.num_ranks(), 4);
  EXPECT_EQ(ranges.num_slots(), 5);
  std::vector<int> owners;
  for (int slot = 0; slot < 5; ++slot) owners.push_back(ranges.rank_of(slot));
  EXPECT_EQ(owners, (std::vector{1, 1, 1, 3, 3}));
  EXPECT_EQ(ranges.count(0), 0);
  EXPECT_EQ(ranges.count(3), 2);
  EXPECT_EQ(ranges.end(1), 3);
}

TEST(SlotRanges, CutsAnArrayOfSlots) {
  const std::vector<int32_t> firsts = {0, 2, 5};
  const std::vector<int> experts = {7, 8, 9, 10, 11};
  const auto second = SlotRanges(firsts).of(1, std::span(experts));
  EXPECT_EQ(std::vector<int>(second.begin(), second.end()), (std::vector{9, 10, 11}));
}

TEST(SlotRanges, OfNothingAreEmpty) {
  EXPECT_EQ(SlotRanges().num_ranks(), 0);
  EXPECT_EQ(SlotRanges().num_slots(), 0);
}

}  // namespace
}  // namespace trimtab
