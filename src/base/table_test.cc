// SPDX-License-Identifier: Apache-2.0
#include "trimtab/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace trimtab {
namespace {

TEST(Cells, AreCountedIn64Bits) {
  const int side = 100'000;
  EXPECT_EQ(cells(side, side), 10'000'000'000U);
  EXPECT_EQ(cells(3, int64_t{4}, uint8_t{5}), 60U);
  EXPECT_EQ(cells(), 1U);
}

TEST(Table, SeesAVectorRowByRow) {
  std::vector<int> values(12);
  std::iota(values.begin(), values.end(), 0);
  const Table table(values, 4);
  EXPECT_EQ(table.rows(), 3);
  EXPECT_EQ(table(2, 1), 9);
  EXPECT_TRUE(std::ranges::equal(table[1], std::vector{4, 5, 6, 7}));
  table(0, 3) = 30;
  EXPECT_EQ(values[3], 30);
  const Table<const int> last = table.slice(1, 2);
  EXPECT_EQ(last.rows(), 2);
  EXPECT_EQ(last(1, 3), 11);
  EXPECT_EQ(last.values().size(), 8U);
}

TEST(Table, OfAConstVectorIsReadOnly) {
  const std::vector<float> values(6, 1.0F);
  static_assert(std::is_same_v<decltype(Table(values, 3)), Table<const float>>);
  EXPECT_EQ(Table(values, 3).rows(), 2);
}

}  // namespace
}  // namespace trimtab
