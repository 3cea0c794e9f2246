// SPDX-License-Identifier: Apache-2.0
#include "policy/assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "trimtab/table.h"

namespace trimtab {
namespace {

int64_t cost_of(const std::vector<int64_t>& table, const std::vector<int>& column_of) {
  int64_t sum = 0;
  for (size_t i = 0; i < column_of.size(); ++i)
    sum += table[i * column_of.size() + static_cast<size_t>(column_of[i])];
  return sum;
}

int64_t least_cost(const std::vector<int64_t>& table, int n) {
  std::vector<int> permutation(n);
  std::iota(permutation.begin(), permutation.end(), 0);
  int64_t best = cost_of(table, permutation);
  while (std::next_permutation(permutation.begin(), permutation.end())) {
    best = std::min(best, cost_of(table, permutation));
  }
  return best;
}

void expect_permutation(std::vector<int> columns) {
  std::ranges::sort(columns);
  for (int i = 0; i < std::ssize(columns); ++i) ASSERT_EQ(columns[i], i);
}

TEST(CheapestAssignment, EqualsTheBestOfAllPermutations) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int n = 1 + round % 6;
    std::vector<int64_t> table(cells(n, n));
    for (int64_t& c : table) c = static_cast<int64_t>(random() % 8);
    const std::vector<int> found = cheapest_assignment(Table(table, n));
    expect_permutation(found);
    EXPECT_EQ(cost_of(table, found), least_cost(table, n)) << "round " << round;
  }
}

TEST(CheapestAssignment, RowsWithoutAListedColumnTakeAny) {
  std::mt19937 random(2);
  for (int round = 0; round < 600; ++round) {
    const int n = 1 + round % 7;
    AssignmentCosts costs;
    std::vector<int64_t> table;
    for (int row = 0; row < n; ++row) {
      const auto elsewhere = static_cast<int64_t>(4 + random() % 6);
      for (int column = 0; column < n; ++column) {
        const bool is_listed = random() % 3 == 0;
        table.push_back(is_listed ? static_cast<int64_t>(random() % 10) % (elsewhere + 1)
                                  : elsewhere);
        if (is_listed) costs.list(column, table.back());
      }
      costs.end_row(elsewhere);
    }
    std::vector<int> found = cheapest_assignment(costs);
    std::vector<bool> taken(n, false);
    for (const int column : found) {
      if (column >= 0) taken[column] = true;
    }
    for (int& column : found) {
      if (column >= 0) continue;
      column = static_cast<int>(std::ranges::find(taken, false) - taken.begin());
      taken[column] = true;
    }
    expect_permutation(found);
    EXPECT_EQ(cost_of(table, found), least_cost(table, n)) << "round " << round;
  }
}

}  // namespace
}  // namespace trimtab
