// SPDX-License-Identifier: Apache-2.0
#include "policy/assignment.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

namespace trimtab {
namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
constexpr int32_t kNone = -1;

// Each row has, beside the n columns, one of its own that stands for "elsewhere": column n + row.
// Invariant: cost - row price - column price >= 0, and 0 for assigned pairs.
class Assignment {
 public:
  explicit Assignment(const AssignmentCosts& costs)
      : costs_(costs),
        size_(costs.num_rows()),
        row_price_(size_),
        column_price_(2 * size_, 0),
        distance_(2 * size_, kFar),
        row_of_(2 * size_, kNone),
        column_of_(size_, kNone),
        previous_(2 * size_, kNone) {}

  std::vector<int> solve() {
    for (int row = 0; row < size_; ++row) assign_freely(row);
    for (int row = 0; row < size_; ++row) {
      if (column_of_[row] == kNone) augment(row);
    }
    std::vector<int> result;
    for (const int32_t column : column_of_) result.push_back(is_own(column) ? kNone : column);
    return result;
  }

 private:
  // A column that may be the next of the tree: near ones come first, among equals free ones, then
  // the lowest.
  struct Reached {
    int64_t distance;
    bool taken;
    int column;
    bool operator<(const Reached& other) const {
      return std::tie(distance, taken, column) >
             std::tie(other.distance, other.taken, other.column);
    }
  };

  bool is_own(int column) const { return column >= size_; }
  int own_column(int row) const { return size_ + row; }

  template <class Visit>
  void for_each_column(int row, Visit&& visit) const {
    for (int64_t i = costs_.first[row]; i < costs_.first[row + 1]; ++i) {
      visit(costs_.column[i], costs_.cost[i]);
    }
    visit(own_column(row), costs_.elsewhere[row]);
  }

  // Most rows get a cheapest column without a search.
  void assign_freely(int row) {
    int64_t least = kFar;
    for_each_column(row, [&](int, int64_t cost) { least = std::min(least, cost); });
    row_price_[row] = least;
    for_each_column(row, [&](int column, int64_t cost) {
      if (cost == least && column_of_[row] == kNone && row_of_[column] == kNone)
        assign(row, column);
    });
  }

  void assign(int row, int column) {
    column_of_[row] = column;
    row_of_[column] = row;
  }

  // Assigns one more row along a shortest augmenting path in reduced costs.
  void augment(int root) {
    tree_.clear();
    open_ = {};
    touched_.clear();
    extend(root, 0);
    int found = next();
    while (row_of_[found] != kNone) {
      extend(row_of_[found], distance_[found]);
      found = next();
    }
    const int64_t reached = distance_[found];
    row_price_[root] += reached;
    for (const int column : tree_) {
      if (column == found) continue;
      row_price_[row_of_[column]] += reached - distance_[column];
      column_price_[column] -= reached - distance_[column];
    }
    for (int column = found;;) {
      const int row = previous_[column];
      const int left = column_of_[row];
      assign(row, column);
      if (row == root) break;
      column = left;
    }
    for (const int column : touched_) distance_[column] = kFar;
  }

  void extend(int row, int64_t reached) {
    for_each_column(row, [&](int column, int64_t cost) {
      const int64_t through = reached + cost - row_price_[row] - column_price_[column];
      if (through >= distance_[column]) return;
      if (distance_[column] == kFar) touched_.push_back(column);
      distance_[column] = through;
      previous_[column] = row;
      open_.push({through, row_of_[column] != kNone, column});
    });
  }

  // Takes the nearest column into the tree. There is always one: a row's own is free.
  int next() {
    for (;;) {
      const Reached nearest = open_.top();
      open_.pop();
      // This entry is out of date when the column was reached again on a shorter way.
      if (nearest.distance != distance_[nearest.column]) continue;
      tree_.push_back(nearest.column);
      return nearest.column;
    }
  }

  const AssignmentCosts& costs_;
  const int size_;
  std::vector<int64_t> row_price_, column_price_;
  std::vector<int64_t> distance_;  // [columns] from the row that is being assigned
  std::vector<int32_t> row_of_, column_of_;
  std::vector<int32_t> previous_;  // [columns] the row on the way there
  std::priority_queue<Reached> open_;
  std::vector<int> tree_, touched_;  // columns in the tree; columns whose distance is not kFar
};

}  // namespace

std::vector<int> cheapest_assignment(const AssignmentCosts& costs) {
  return Assignment(costs).solve();
}

std::vector<int> cheapest_assignment(Table<const int64_t> cost) {
  AssignmentCosts costs;
  for (int row = 0; row < cost.rows(); ++row) {
    for (int column = 0; column < cost.cols(); ++column) costs.list(column, cost(row, column));
    costs.end_row(kFar / 2);  // never worth it
  }
  return cheapest_assignment(costs);
}

}  // namespace trimtab
