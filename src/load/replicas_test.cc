// SPDX-License-Identifier: Apache-2.0
#include "load/replicas.h"

#include <gtest/gtest.h>

namespace trimtab {
namespace {

TEST(Replicas, AreCountedPerExpert) {
  EXPECT_EQ(replica_counts(std::vector<int32_t>{0, 0, 1, 0, 1, 2}, 3),
            (std::vector<int32_t>{3, 2, 1}));
}

TEST(Replicas, DuplicatesAreCountedPerRank) {
  const std::vector<int32_t> first_slots = {0, 3, 6};
  const auto of = [&](std::vector<int32_t> logical) {
    return duplicate_slots(logical, SlotRanges(first_slots));
  };
  EXPECT_EQ(of({0, 0, 0, 0, 1, 1}), 3);
  EXPECT_EQ(of({0, 1, 2, 2, 1, 0}), 0);
}

}  // namespace
}  // namespace trimtab
