// SPDX-License-Identifier: Apache-2.0
// These functions find cheapest assignments of rows to columns.
#pragma once

#include <cstdint>
#include <vector>

#include "trimtab/table.h"

namespace trimtab {

// The costs of n rows for n columns, where most columns cost a row the same. Rows are added one by
// one.
struct AssignmentCosts {
  std::vector<int64_t> elsewhere;    // [rows] the price of any column that is not listed
  std::vector<int32_t> column;       // listed columns, row by row, each at most once
  std::vector<int64_t> cost;         // their prices, at most what the row pays elsewhere
  std::vector<int64_t> first = {0};  // [rows + 1] where a row's columns begin

  int num_rows() const { return static_cast<int>(elsewhere.size()); }
  // Each row lists its columns, and then says what it pays elsewhere.
  void list(int32_t c, int64_t price) {
    column.push_back(c);
    cost.push_back(price);
  }
  void end_row(int64_t price) {
    elsewhere.push_back(price);
    first.push_back(std::ssize(column));
  }
  int64_t of(int row, int32_t c) const {
    for (int64_t i = first[row]; i < first[row + 1]; ++i) {
      if (column[i] == c) return cost[i];
    }
    return elsewhere[row];
  }
};

// Returns the column of each row in a cheapest assignment, -1 for rows that take any column that
// nobody has. No two rows get the same column. Kuhn-Munkres with potentials, searched along the
// listed columns only; deterministic. Source: H. W. Kuhn, "The Hungarian method for the assignment
// problem", 1955.
std::vector<int> cheapest_assignment(const AssignmentCosts& costs);

// The same where every cost is given: [n, n]. Every row gets a column.
std::vector<int> cheapest_assignment(Table<const int64_t> cost);

}  // namespace trimtab
