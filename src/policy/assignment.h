// SPDX-License-Identifier: Apache-2.0
// Cheapest assignments of rows to columns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab {

// What n rows pay for n columns, where most columns cost a row the same. Rows are added one by one.
struct AssignmentCosts {
  std::vector<int64_t> elsewhere;   // [rows] for any column that is not listed
  std::vector<int32_t> column;      // listed columns, row by row, each at most once
  std::vector<int64_t> cost;        // of these; at most what the row pays elsewhere
  std::vector<size_t> first = {0};  // [rows + 1] where a row's columns begin

  // For one row after another: its columns, then what it pays elsewhere.
  void list(int32_t c, int64_t price) {
    column.push_back(c);
    cost.push_back(price);
  }
  void end_row(int64_t price) {
    elsewhere.push_back(price);
    first.push_back(column.size());
  }
  int64_t of(size_t row, int32_t c) const {
    for (size_t i = first[row]; i < first[row + 1]; ++i) {
      if (column[i] == c) return cost[i];
    }
    return elsewhere[row];
  }
};

// The column of each row in a cheapest assignment, -1 for rows that take any column that nobody
// has. Each row's listed column goes to it alone. Kuhn-Munkres with potentials, searched along the
// listed columns only; deterministic. Source: H. W. Kuhn, "The Hungarian method for the assignment
// problem", 1955.
std::vector<int> cheapest_assignment(const AssignmentCosts& costs);

// The same for a whole table: cost: [n][n]. No -1.
std::vector<int> cheapest_assignment(std::span<const int64_t> cost, int n);

}  // namespace trimtab
