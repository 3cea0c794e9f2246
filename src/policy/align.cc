// SPDX-License-Identifier: Apache-2.0
#include "policy/align.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "policy/assignment.h"

namespace trimtab {
namespace {

// Assigns ranks of a proposal to ranks of the current map and counts the weights that must move.
class RankMatcher {
 public:
  RankMatcher(std::span<const int32_t> current, std::span<const int32_t> proposal,
              std::span<const int32_t> first_slots, int num_experts)
      : proposal_(proposal),
        first_slots_(first_slots),
        holders_(num_experts),
        wanted_(num_experts, 0),
        place_(first_slots.size() - 1) {
    for (int rank = 0; rank < std::ssize(place_); ++rank) {
      for (const int32_t e : experts(current, rank)) {
        std::vector<int>& holders = holders_[e];
        if (holders.empty() || holders.back() != rank) holders.push_back(rank);
      }
    }
  }

  // Assigns the ranks `from` (of the proposal) to the ranks `to`, equally many: to[result[i]] takes
  // from[i]. Adds up the cost: twice the weights that ranks have to fetch, in units, and 1 for each
  // that gets another's; kForbidden where the sizes of ranks do not fit together.
  std::vector<int> match(const std::vector<int>& from, const std::vector<int>& to, int64_t& total) {
    std::ranges::fill(place_, kNowhere);
    for (size_t j = 0; j < to.size(); ++j) place_[to[j]] = static_cast<int>(j);
    AssignmentCosts costs;
    for (const int rank : from) add_row(rank, costs);
    std::vector<int> result = cheapest_assignment(costs);
    give_the_rest(from, to, result);
    for (size_t i = 0; i < from.size(); ++i) {
      const bool fits = size(from[i]) == size(to[result[i]]);
      total += fits ? costs.of(i, result[i]) : kForbidden;
    }
    return result;
  }

  static constexpr int64_t kUnit = 720;
  static constexpr int64_t kForbidden = int64_t{1} << 40;

 private:
  static constexpr int kNowhere = -1;

  int32_t size(int rank) const { return first_slots_[rank + 1] - first_slots_[rank]; }
  std::span<const int32_t> experts(std::span<const int32_t> map, int rank) const {
    return map.subspan(first_slots_[rank], size(rank));
  }

  // Listed are the ranks of its size that hold some of what the proposal gives rank `from`, and
  // itself, so that staying wins ties. An expert twice on a rank moves once: its cost is spread
  // over its copies in 720ths (exact up to 6).
  void add_row(int from, AssignmentCosts& costs) {
    const std::span<const int32_t> wanted = experts(proposal_, from);
    for (const int32_t e : wanted) ++wanted_[e];
    int64_t all = 0;
    held_by_.clear();
    held_by_.emplace_back(from, 1);
    for (const int32_t e : wanted) {
      const int64_t unit = 2 * (kUnit / wanted_[e]);
      all += unit;
      for (const int holder : holders_[e]) held_by_.emplace_back(holder, unit);
    }
    for (const int32_t e : wanted) wanted_[e] = 0;
    std::ranges::sort(held_by_);
    for (size_t i = 0; i < held_by_.size();) {
      const int rank = held_by_[i].first;
      int64_t saved = 0;
      for (; i < held_by_.size() && held_by_[i].first == rank; ++i) saved += held_by_[i].second;
      const int column = place_[rank];
      if (column != kNowhere && size(rank) == size(from)) costs.list(column, all + 1 - saved);
    }
    costs.end_row(all + 1);
  }

  // Ranks that hold nothing of what they get: the first of their size.
  void give_the_rest(const std::vector<int>& from, const std::vector<int>& to,
                     std::vector<int>& result) const {
    std::vector<bool> given(to.size(), false);
    for (const int j : result) {
      if (j != kNowhere) given[j] = true;
    }
    for (const bool must_fit : {true, false}) {
      std::map<int32_t, size_t>
          next;  // by size: columns before this one are given, or of another size
      for (size_t i = 0; i < from.size(); ++i) {
        if (result[i] != kNowhere) continue;
        size_t& j = next[must_fit ? size(from[i]) : 0];
        while (j < to.size() && (given[j] || (must_fit && size(to[j]) != size(from[i])))) ++j;
        if (j == to.size()) continue;
        given[j] = true;
        result[i] = static_cast<int>(j);
      }
    }
  }

  std::span<const int32_t> proposal_;
  std::span<const int32_t> first_slots_;
  std::vector<std::vector<int>> holders_;  // [experts] ranks of the current map
  std::vector<int32_t> wanted_;            // [experts] copies on the rank in hand
  std::vector<int> place_;                 // [ranks] where a rank stands in `to`
  std::vector<std::pair<int, int64_t>>
      held_by_;  // of the rank in hand: who holds something, and what that saves
};

std::vector<std::vector<int>> ranks_of_nodes(const Topology& topology, int num_ranks) {
  std::vector<std::vector<int>> nodes(topology.num_nodes());
  for (int r = 0; r < num_ranks; ++r) nodes[topology.node(r)].push_back(r);
  return nodes;
}

// new_name[r]: which rank takes what the proposal gives rank r.
std::vector<int> match_ranks(RankMatcher& matcher, const Topology& topology, int num_ranks) {
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
  std::vector<int> new_name(num_ranks);
  for (size_t i = 0; i < n; ++i) {
    const auto j = static_cast<size_t>(node_of[i]);
    for (size_t k = 0; k < nodes[i].size(); ++k) {
      new_name[nodes[i][k]] = nodes[j][static_cast<size_t>(matches[i * n + j][k])];
    }
  }
  return new_name;
}

}  // namespace

std::vector<int32_t> align_ranks(std::span<const int32_t> current,
                                 std::span<const int32_t> proposal,
                                 std::span<const int32_t> first_slots, int num_experts,
                                 const Topology& topology) {
  const int num_ranks = static_cast<int>(first_slots.size()) - 1;
  RankMatcher matcher(current, proposal, first_slots, num_experts);
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

std::vector<int32_t> align_slots(std::span<const int32_t> current,
                                 std::span<const int32_t> proposal,
                                 std::span<const int32_t> first_slots) {
  std::vector<int32_t> result(proposal.size());
  for (size_t r = 0; r + 1 < first_slots.size(); ++r) {
    const auto first = static_cast<size_t>(first_slots[r]);
    const size_t size = static_cast<size_t>(first_slots[r + 1]) - first;
    std::vector<int32_t> incoming(proposal.begin() + first_slots[r],
                                  proposal.begin() + first_slots[r + 1]);
    std::sort(incoming.begin(), incoming.end());
    std::vector<bool> kept(size, false);
    for (size_t s = 0; s < size; ++s) {
      const auto found = std::lower_bound(incoming.begin(), incoming.end(), current[first + s]);
      if (found == incoming.end() || *found != current[first + s]) continue;
      kept[s] = true;
      incoming.erase(found);
    }
    size_t next = 0;
    for (size_t s = 0; s < size; ++s)
      result[first + s] = kept[s] ? current[first + s] : incoming[next++];
  }
  return result;
}

}  // namespace trimtab
