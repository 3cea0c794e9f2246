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
  void list(int32_t c, int64_t price) { column.push_back(c), cost.push_back(price); }
  void end_row(int64_t price_elsewhere) { elsewhere.push_back(price_elsewhere), first.push_back(column.size()); }
};

// The column of each row in a cheapest assignment, -1 for rows that take any column that nobody has. Each row's listed
// column goes to it alone. Kuhn-Munkres with potentials, searched along the listed columns only; deterministic. Source:
// H. W. Kuhn, "The Hungarian method for the assignment problem", 1955.
std::vector<int> cheapest_assignment(const AssignmentCosts& costs);

// The same for a whole table: cost: [n][n]. No -1.
std::vector<int> cheapest_assignment(std::span<const int64_t> cost, int n);

}  // namespace trimtab
