// SPDX-License-Identifier: Apache-2.0
#include "eplb/policy/align.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>

namespace trimtab {
namespace {

// The (rank, expert) pairs of a map with their numbers of copies: [ranks][experts].
std::vector<int32_t> copies(std::span<const int32_t> map, std::span<const int32_t> first_slots, int num_experts) {
  const size_t num_ranks = first_slots.size() - 1;
  std::vector<int32_t> result(num_ranks * static_cast<size_t>(num_experts), 0);
  for (size_t r = 0; r < num_ranks; ++r) {
    for (int32_t s = first_slots[r]; s < first_slots[r + 1]; ++s) {
      ++result[r * static_cast<size_t>(num_experts) + static_cast<size_t>(map[static_cast<size_t>(s)])];
    }
  }
  return result;
}

// Assigns ranks of a proposal to ranks of the current map and counts the weights that must move.
class RankMatcher {
 public:
  RankMatcher(std::span<const int32_t> current, std::span<const int32_t> proposal, std::span<const int32_t> first_slots,
              int num_experts)
      : proposal_(proposal),
        first_slots_(first_slots),
        num_experts_(static_cast<size_t>(num_experts)),
        held_(copies(current, first_slots, num_experts)),
        wanted_(copies(proposal, first_slots, num_experts)) {}

  // Weights that rank `to` would have to fetch to hold what the proposal gives rank `from`; kForbidden when their sizes
  // differ. Staying (from == to) wins ties.
  int64_t cost(int from, int to) const {
    if (size(from) != size(to)) return kForbidden;
    int64_t missing = 0;
    const auto want = std::span(wanted_).subspan(static_cast<size_t>(from) * num_experts_, num_experts_);
    const auto have = std::span(held_).subspan(static_cast<size_t>(to) * num_experts_, num_experts_);
    for (int32_t s = first_slots_[static_cast<size_t>(from)]; s < first_slots_[static_cast<size_t>(from) + 1]; ++s) {
      const auto e = static_cast<size_t>(proposal_[static_cast<size_t>(s)]);
      // An expert twice on a rank moves once; spread its cost over its copies in 720ths (exact up to 6 copies).
      if (have[e] == 0) missing += kUnit / want[e];
    }
    return 2 * missing + (from == to ? 0 : 1);
  }

  // Assigns the ranks `from` (of the proposal) to the ranks `to`, equally many: to[result[i]] takes from[i]. Adds up
  // the cost.
  std::vector<int> match(const std::vector<int>& from, const std::vector<int>& to, int64_t& total) const {
    const size_t n = from.size();
    std::vector<int64_t> table(n * n);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) table[i * n + j] = cost(from[i], to[j]);
    }
    std::vector<int> result = cheapest_assignment(table, static_cast<int>(n));
    for (size_t i = 0; i < n; ++i) total += table[i * n + static_cast<size_t>(result[i])];
    return result;
  }

  static constexpr int64_t kUnit = 720;
  static constexpr int64_t kForbidden = int64_t{1} << 40;

 private:
  int32_t size(int rank) const {
    return first_slots_[static_cast<size_t>(rank) + 1] - first_slots_[static_cast<size_t>(rank)];
  }

  std::span<const int32_t> proposal_;
  std::span<const int32_t> first_slots_;
  size_t num_experts_;
  std::vector<int32_t> held_;    // [ranks][experts], current
  std::vector<int32_t> wanted_;  // [ranks][experts], proposal
};

// Kuhn-Munkres with potentials. Index 0 is a sentinel, rows and columns count from 1. Invariant:
// cost - row_price - column_price >= 0, and 0 for assigned pairs.
class Assignment {
 public:
  Assignment(std::span<const int64_t> cost, int n)
      : cost_(cost),
        size_(static_cast<size_t>(n)),
        row_price_(size_ + 1, 0),
        column_price_(size_ + 1, 0),
        distance_(size_ + 1),
        row_of_(size_ + 1, 0),
        previous_(size_ + 1, 0) {}

  std::vector<int> solve() {
    for (const size_t row : assign_freely()) augment(row);
    std::vector<int> column_of(size_);
    for (size_t j = 1; j <= size_; ++j) column_of[row_of_[j] - 1] = static_cast<int>(j) - 1;
    return column_of;
  }

 private:
  int64_t cost(size_t row, size_t column) const { return cost_[(row - 1) * size_ + column - 1]; }

  // Most rows get a cheapest column of their own without a search. Returns the others.
  std::vector<size_t> assign_freely() {
    std::vector<size_t> left;
    for (size_t row = 1; row <= size_; ++row) {
      const auto begin = cost_.begin() + static_cast<std::ptrdiff_t>((row - 1) * size_);
      row_price_[row] = *std::min_element(begin, begin + static_cast<std::ptrdiff_t>(size_));
      size_t column = 1;
      while (column <= size_ && (row_of_[column] != 0 || cost(row, column) != row_price_[row])) ++column;
      if (column <= size_) {
        row_of_[column] = row;
      } else {
        left.push_back(row);
      }
    }
    return left;
  }

  // Assigns one more row along a shortest augmenting path in reduced costs.
  void augment(size_t row) {
    std::fill(distance_.begin(), distance_.end(), std::numeric_limits<int64_t>::max() / 4);
    open_.resize(size_);
    std::iota(open_.begin(), open_.end(), size_t{1});
    tree_.clear();
    row_of_[0] = row;
    size_t column = 0;
    int64_t reached = 0;  // distance of the tree's last column
    do {
      tree_.push_back(column);
      column = extend(column, reached);
      reached = distance_[column];
    } while (row_of_[column] != 0);
    for (const size_t j : tree_) {
      const int64_t slack = reached - (j == 0 ? 0 : distance_[j]);
      row_price_[row_of_[j]] += slack;
      column_price_[j] -= slack;
    }
    for (; column != 0; column = previous_[column]) row_of_[column] = row_of_[previous_[column]];
  }

  // Reaches out from the row of `column`, then takes the nearest open column (a free one, then the lowest, among
  // equals).
  size_t extend(size_t column, int64_t reached) {
    const size_t row = row_of_[column];
    size_t nearest = 0;
    for (size_t k = 0; k < open_.size(); ++k) {
      const size_t j = open_[k];
      const int64_t through = reached + cost(row, j) - row_price_[row] - column_price_[j];
      if (through < distance_[j]) {
        distance_[j] = through;
        previous_[j] = column;
      }
      const size_t best = open_[nearest];
      const bool freer = distance_[j] == distance_[best] && row_of_[j] == 0 && row_of_[best] != 0;
      if (distance_[j] < distance_[best] || freer) nearest = k;
    }
    const size_t found = open_[nearest];
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(nearest));
    return found;
  }

  std::span<const int64_t> cost_;
  size_t size_;
  std::vector<int64_t> row_price_, column_price_;
  std::vector<int64_t> distance_;          // [columns] from the row that is being assigned
  std::vector<size_t> row_of_, previous_;  // [columns]
  std::vector<size_t> open_, tree_;        // columns not on the tree yet, ascending; columns on it
};

std::vector<std::vector<int>> ranks_of_nodes(const Topology& topology, int num_ranks) {
  std::vector<std::vector<int>> nodes(static_cast<size_t>(topology.num_nodes()));
  for (int r = 0; r < num_ranks; ++r) nodes[static_cast<size_t>(topology.node(r))].push_back(r);
  return nodes;
}

// new_name[r]: which rank takes what the proposal gives rank r.
std::vector<int> match_ranks(const RankMatcher& matcher, const Topology& topology, int num_ranks) {
  const std::vector<std::vector<int>> nodes = ranks_of_nodes(topology, num_ranks);
  const size_t n = nodes.size();
  std::vector<int64_t> table(n * n, int64_t{num_ranks} * RankMatcher::kForbidden);
  std::vector<std::vector<int>> matches(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      if (nodes[i].size() != nodes[j].size()) continue;
      table[i * n + j] = 0;
      matches[i * n + j] = matcher.match(nodes[i], nodes[j], table[i * n + j]);
    }
  }
  const std::vector<int> node_of = cheapest_assignment(table, static_cast<int>(n));
  std::vector<int> new_name(static_cast<size_t>(num_ranks));
  for (size_t i = 0; i < n; ++i) {
    const auto j = static_cast<size_t>(node_of[i]);
    for (size_t k = 0; k < nodes[i].size(); ++k) {
      new_name[static_cast<size_t>(nodes[i][k])] = nodes[j][static_cast<size_t>(matches[i * n + j][k])];
    }
  }
  return new_name;
}

}  // namespace

std::vector<int> cheapest_assignment(std::span<const int64_t> cost, int n) {
  return Assignment(cost, n).solve();
}

std::vector<int32_t> align_ranks(std::span<const int32_t> current, std::span<const int32_t> proposal,
                                 std::span<const int32_t> first_slots, int num_experts, const Topology& topology) {
  const int num_ranks = static_cast<int>(first_slots.size()) - 1;
  const RankMatcher matcher(current, proposal, first_slots, num_experts);
  const std::vector<int> new_name = match_ranks(matcher, topology, num_ranks);
  std::vector<int32_t> result(proposal.size());
  for (size_t r = 0; r < static_cast<size_t>(num_ranks); ++r) {
    const auto to = static_cast<size_t>(new_name[r]);
    assert(first_slots[r + 1] - first_slots[r] == first_slots[to + 1] - first_slots[to]);
    std::copy(proposal.begin() + first_slots[r], proposal.begin() + first_slots[r + 1],
              result.begin() + first_slots[to]);
  }
  return result;
}

std::vector<int32_t> align_slots(std::span<const int32_t> current, std::span<const int32_t> proposal,
                                 std::span<const int32_t> first_slots) {
  std::vector<int32_t> result(proposal.size());
  for (size_t r = 0; r + 1 < first_slots.size(); ++r) {
    const auto first = static_cast<size_t>(first_slots[r]);
    const size_t size = static_cast<size_t>(first_slots[r + 1]) - first;
    std::vector<int32_t> incoming(proposal.begin() + first_slots[r], proposal.begin() + first_slots[r + 1]);
    std::sort(incoming.begin(), incoming.end());
    std::vector<bool> kept(size, false);
    for (size_t s = 0; s < size; ++s) {
      const auto found = std::lower_bound(incoming.begin(), incoming.end(), current[first + s]);
      if (found == incoming.end() || *found != current[first + s]) continue;
      kept[s] = true;
      incoming.erase(found);
    }
    size_t next = 0;
    for (size_t s = 0; s < size; ++s) result[first + s] = kept[s] ? current[first + s] : incoming[next++];
  }
  return result;
}

}  // namespace trimtab
