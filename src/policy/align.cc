// SPDX-License-Identifier: Apache-2.0
#include "policy/align.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "policy/assignment.h"
#include "policy/matrix.h"

namespace trimtab {
namespace {

// Assigns ranks of a proposal to ranks of the current placement and counts the weights that must
// move.
class RankMatcher {
 public:
  RankMatcher(std::span<const int32_t> current, std::span<const int32_t> proposal, SlotRanges slots,
              int num_experts)
      : proposal_(proposal),
        slots_(slots),
        holders_(num_experts),
        wanted_(num_experts, 0),
        place_(slots.num_ranks()) {
    for (int rank = 0; rank < slots.num_ranks(); ++rank) {
      for (const int32_t e : slots.of(rank, current)) {
        std::vector<int>& holders = holders_[e];
        if (holders.empty() || holders.back() != rank) holders.push_back(rank);
      }
    }
  }

  // Assigns the ranks `from` (of the proposal) to the ranks `to`, equally many: to[result[i]] takes
  // from[i]. Adds the cost to `total`: twice the weights that ranks have to fetch, in units, 1 for
  // each rank that takes another's part, and kForbidden where the sizes of ranks do not fit.
  std::vector<int> match(const std::vector<int>& from, const std::vector<int>& to, int64_t& total) {
    std::ranges::fill(place_, kNowhere);
    for (int j = 0; j < std::ssize(to); ++j) place_[to[j]] = j;
    AssignmentCosts costs;
    for (const int rank : from) add_row(rank, costs);
    std::vector<int> result = cheapest_assignment(costs);
    give_the_rest(from, to, result);
    for (int i = 0; i < std::ssize(from); ++i) {
      const bool fits = slots_.count(from[i]) == slots_.count(to[result[i]]);
      total += fits ? costs.of(i, result[i]) : kForbidden;
    }
    return result;
  }

  static constexpr int64_t kUnit = 720;
  static constexpr int64_t kForbidden = int64_t{1} << 40;

 private:
  static constexpr int kNowhere = -1;

  // Lists the ranks of the same size that hold some of what the proposal gives rank `from`, and the
  // rank itself, so that staying wins ties. An expert twice on a rank moves once: its cost is
  // spread over its replicas there in 720ths, which are whole numbers up to 6 replicas.
  void add_row(int from, AssignmentCosts& costs) {
    const std::span<const int32_t> wanted = slots_.of(from, proposal_);
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
      if (column != kNowhere && slots_.count(rank) == slots_.count(from)) {
        costs.list(column, all + 1 - saved);
      }
    }
    costs.end_row(all + 1);
  }

  // Gives the ranks that hold nothing of what they get the first free columns of their size.
  void give_the_rest(const std::vector<int>& from, const std::vector<int>& to,
                     std::vector<int>& result) const {
    std::vector<bool> given(to.size(), false);
    for (const int j : result) {
      if (j != kNowhere) given[j] = true;
    }
    for (const bool must_fit : {true, false}) {
      // By size of the rank: all columns before this one are given, or of another size.
      std::map<int, int> next;
      for (int i = 0; i < std::ssize(from); ++i) {
        if (result[i] != kNowhere) continue;
        const int size = slots_.count(from[i]);
        int& j = next[must_fit ? size : 0];
        while (j < std::ssize(to) && (given[j] || (must_fit && slots_.count(to[j]) != size))) ++j;
        if (j == std::ssize(to)) continue;
        given[j] = true;
        result[i] = j;
      }
    }
  }

  std::span<const int32_t> proposal_;
  SlotRanges slots_;
  std::vector<std::vector<int>> holders_;  // [experts] ranks of the current placement
  std::vector<int32_t> wanted_;            // [experts] replicas on the rank in hand
  std::vector<int> place_;                 // [ranks] where a rank stands in `to`
  // For the rank in hand: the ranks that hold something of it, and what each item saves.
  std::vector<std::pair<int, int64_t>> held_by_;
};

std::vector<std::vector<int>> ranks_of_nodes(const Topology& topology, int num_ranks) {
  std::vector<std::vector<int>> nodes(topology.num_nodes());
  for (int r = 0; r < num_ranks; ++r) nodes[topology.node(r)].push_back(r);
  return nodes;
}

// Returns new_name: rank new_name[r] takes what the proposal gives rank r.
std::vector<int> match_ranks(RankMatcher& matcher, const Topology& topology, int num_ranks) {
  const std::vector<std::vector<int>> nodes = ranks_of_nodes(topology, num_ranks);
  const int64_t n = std::ssize(nodes);
  Matrix<int64_t> costs(n, n, num_ranks * RankMatcher::kForbidden);
  Matrix<std::vector<int>> matches(n, n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      if (nodes[i].size() != nodes[j].size()) continue;
      costs(i, j) = 0;
      matches(i, j) = matcher.match(nodes[i], nodes[j], costs(i, j));
    }
  }
  const std::vector<int> node_of = cheapest_assignment(Table(costs.values(), n));
  std::vector<int> new_name(num_ranks);
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<int>& match = matches(i, node_of[i]);
    for (int64_t k = 0; k < std::ssize(match); ++k) {
      new_name[nodes[i][k]] = nodes[node_of[i]][match[k]];
    }
  }
  return new_name;
}

}  // namespace

std::vector<int32_t> align_ranks(std::span<const int32_t> current,
                                 std::span<const int32_t> proposal, SlotRanges slots,
                                 int num_experts, const Topology& topology) {
  RankMatcher matcher(current, proposal, slots, num_experts);
  const std::vector<int> new_name = match_ranks(matcher, topology, slots.num_ranks());
  std::vector<int32_t> result(proposal.size());
  for (int r = 0; r < slots.num_ranks(); ++r) {
    assert(slots.count(r) == slots.count(new_name[r]));
    std::ranges::copy(slots.of(r, proposal), result.begin() + slots.first(new_name[r]));
  }
  return result;
}

std::vector<int32_t> align_slots(std::span<const int32_t> current,
                                 std::span<const int32_t> proposal, SlotRanges slots) {
  constexpr int32_t kFree = -1;
  std::vector<int32_t> result(current.begin(), current.end());
  for (int r = 0; r < slots.num_ranks(); ++r) {
    const std::span<const int32_t> proposed = slots.of(r, proposal);
    std::vector<int32_t> incoming(proposed.begin(), proposed.end());
    std::sort(incoming.begin(), incoming.end());
    const std::span<int32_t> aligned = slots.of(r, std::span(result));
    for (int32_t& e : aligned) {
      const auto found = std::lower_bound(incoming.begin(), incoming.end(), e);
      if (found != incoming.end() && *found == e) {
        incoming.erase(found);
      } else {
        e = kFree;
      }
    }
    auto next = incoming.begin();
    for (int32_t& e : aligned) {
      if (e == kFree) e = *next++;
    }
  }
  return result;
}

}  // namespace trimtab
