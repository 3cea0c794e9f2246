// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/served_search.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/random.h"
#include "policy/layer_placement.h"
#include "policy/limits.h"

namespace trimtab {
namespace {

using Slots = std::vector<int32_t>;

// Costs this close are the same.
constexpr double kReached = 1e-3;

// One or two slots of a placement get other experts.
struct Change {
  int32_t slot = -1, expert = -1;
  int32_t other_slot = -1, other_expert = -1;  // -1: one slot alone
};

void apply(const Change& change, Slots& placement) {
  placement[change.slot] = change.expert;
  if (change.other_slot >= 0) placement[change.other_slot] = change.other_expert;
}

class ServedSearch {
 public:
  ServedSearch(const ServedTask& task, Slots proposal)
      : task_(task),
        slots_(task.current.first_slots()),
        current_(to_vector(task.current.logical(task.layer))),
        proposal_(std::move(proposal)),
        limits_(task.limits),
        estimates_(task.estimates),
        quick_(task.steps, slots_, task.serving),
        window_(sum_of_steps(task.steps.load, 0, {0, task.steps.load.num_steps})) {}

  Slots run() {
    explore();
    return choose();
  }

  // Also with fewer moves than the best takes. others: more placements to consider.
  std::vector<Slots> frontier(std::span<const Slots> others) {
    explore();
    for (const Slots& other : others) {
      if (within_limits(other)) consider(other);
    }
    if (task_.serving.cost != nullptr) {
      constexpr int64_t kMostMoves = 64, kParts = 8;
      const int64_t most = limits_.max_moves;
      estimates_ /= kParts;
      for (limits_.max_moves = 1; limits_.max_moves < std::min(most, kMostMoves);
           limits_.max_moves *= 2) {
        consider(exchanged(current_));
      }
      limits_.max_moves = most;
    }
    return undominated();
  }

 private:
  struct Candidate {
    Slots placement;
    double cost = 0;  // with the price of its moves
    int64_t moves = 0;
  };
  // A placement on the way of the search over all changes.
  struct Place {
    Slots placement;
    double squares = 0;
  };

  void explore() {
    consider(current_);
    if (within_limits(proposal_)) {
      consider(proposal_);
      consider(without_needless_moves(proposal_));
    }
    // Equal shares of summed loads say little of what single steps cost. From the current placement
    // fewer moves may do.
    if (task_.serving.cost != nullptr) {
      const Slots found = choose();
      consider(without_needless_moves(exchanged(found)));
      if (found != current_) consider(exchanged(current_));
    }
    if (const int64_t width = width_of_search(); width > 0) search_all(width);
  }

  // Of all candidates, those that are more level than all with fewer moves: by ascending moves.
  std::vector<Slots> undominated() const {
    const auto level = [&](const Candidate& one) {
      return one.cost - task_.move_price * static_cast<double>(one.moves);
    };
    const std::vector<int32_t> order =
        sorted_ids(std::ssize(candidates_), [&](int32_t a, int32_t b) {
          const Candidate &x = candidates_[cells(a)], &y = candidates_[cells(b)];
          return std::pair(x.moves, level(x)) < std::pair(y.moves, level(y));
        });
    std::vector<Slots> result;
    double least = level(candidates_.front());  // the current placement
    for (const int32_t i : order) {
      const Candidate& one = candidates_[cells(i)];
      if (level(one) >= least) continue;
      least = level(one);
      result.push_back(one.placement);
    }
    return result;
  }

  int rank_of(int32_t slot) const { return slots_.rank_of(slot); }
  std::span<const int32_t> on_rank(int rank, const Slots& placement) const {
    return slots_.of(rank, std::span(placement));
  }
  bool holds(int rank, int32_t expert, const Slots& placement) const {
    const auto experts = on_rank(rank, placement);
    return std::ranges::find(experts, expert) != experts.end();
  }
  std::vector<int64_t> received_by(const Slots& placement) const {
    return received(current_, placement, slots_.firsts());
  }
  bool within_limits(const Slots& placement) const {
    const std::vector<int64_t> in = received_by(placement);
    return std::ranges::max(in) <= limits_.max_receive &&
           std::accumulate(in.begin(), in.end(), int64_t{0}) <= limits_.max_moves;
  }
  int64_t moves_of(const Slots& placement) const {
    const std::vector<int64_t> in = received_by(placement);
    return std::accumulate(in.begin(), in.end(), int64_t{0});
  }
  std::vector<int32_t> replicas_of(const Slots& placement) const {
    std::vector<int32_t> replicas(cells(task_.current.num_experts()));
    for (const int32_t e : placement) ++replicas[e];
    return replicas;
  }

  double consider(Slots placement) {
    const int64_t moves = moves_of(placement);
    const double cost = served_cost(task_.current, placement, task_.steps, task_.serving);
    candidates_.push_back(
        {std::move(placement), cost + task_.move_price * static_cast<double>(moves), moves});
    return cost;
  }

  Slots choose() {
    const double least = std::ranges::min_element(candidates_, {}, &Candidate::cost)->cost;
    const Candidate* best = nullptr;
    for (const Candidate& one : candidates_) {
      if (one.cost > least + kReached) continue;
      if (best == nullptr || std::pair(one.moves, one.cost) < std::pair(best->moves, best->cost))
        best = &one;
    }
    return best->placement;
  }

  // Gives slots back what they hold now, one by one, as long as the rule reaches the same without
  // them: first those whose moves brought experts with little load.
  Slots without_needless_moves(Slots placement) {
    const double start = quick_.of(placement).peak;
    for (int pass = 0; pass < 2; ++pass) {
      const std::vector<int32_t> order = sorted_ids(slots_.num_slots(), [&](int32_t a, int32_t b) {
        return window_[placement[a]] < window_[placement[b]];
      });
      for (const int32_t slot : order) {
        auto undone = undo(placement, slot);
        if (!undone) continue;
        const auto saved = static_cast<double>(moves_of(placement) - moves_of(*undone));
        if (quick_.of(*undone).peak > start + kReached / 2 + task_.move_price * saved) continue;
        placement = std::move(*undone);
      }
    }
    return placement;
  }

  // The placement with a slot as it is now; where its expert has no other slot, that one goes back
  // to a slot where it is now. None where that can't be.
  std::optional<Slots> undo(const Slots& placement, int32_t slot) const {
    const int32_t now = current_[slot], next = placement[slot];
    if (now == next || holds(rank_of(slot), now, placement)) return std::nullopt;
    Slots undone = placement;
    undone[slot] = now;
    if (std::ranges::find(undone, next) != undone.end()) return undone;
    std::vector<int32_t> replicas = replicas_of(undone);
    for (int32_t s = 0; s < slots_.num_slots(); ++s) {
      if (current_[s] != next || s == slot || replicas[undone[s]] < 2) continue;
      undone[s] = next;
      return undone;
    }
    return std::nullopt;
  }

  // Tries exchanges of slots, and other experts in slots whose expert has another, at random, and
  // keeps what lowers the estimate.
  Slots exchanged(Slots placement) {
    constexpr uint64_t kSeed = 0x74696d65;
    constexpr double kLevelling = 0.05;  // what squares count beside the peak
    const auto value = [&](const Slots& slots) {
      const QuickCost::Value estimate = quick_.of(slots);
      return estimate.peak + kLevelling * estimate.squares +
             task_.move_price * static_cast<double>(moves_of(slots));
    };
    Random random(kSeed);
    double best = value(placement);
    const auto slots = static_cast<uint32_t>(slots_.num_slots());
    for (int64_t left = estimates_ / cost_of_estimate(); left > 0; --left) {
      const auto s = static_cast<int32_t>(random.below(slots));
      const auto t = static_cast<int32_t>(random.below(slots));
      const int32_t a = placement[s], b = placement[t];
      const int rank_s = rank_of(s), rank_t = rank_of(t);
      if (rank_s == rank_t || a == b || holds(rank_s, b, placement)) continue;
      Slots next = placement;
      next[s] = b;
      if (random.below(2) == 0 && std::ranges::find(next, a) != next.end()) {
        // Slot s alone changes.
      } else if (!holds(rank_t, a, placement)) {
        next[t] = a;
      } else {
        continue;
      }
      if (!within_limits(next)) continue;
      const double found = value(next);
      if (found >= best - 1e-9) continue;
      best = found;
      placement = std::move(next);
    }
    return placement;
  }
  int64_t cost_of_estimate() const {
    return std::max<int64_t>(1, slots_.num_slots() * task_.steps.load.num_steps);
  }

  // Every slot may get every expert, and any two slots may change places.
  int64_t changes() const {
    const int64_t slots = slots_.num_slots();
    return slots * task_.current.num_experts() + slots * slots / 2;
  }
  // How many placements with the same number of moves the search may go on from; 0: too few.
  int64_t width_of_search() const {
    constexpr int64_t kMoves = 8, kLeast = 4, kMost = 48;
    const int64_t width = estimates_ / (changes() * cost_of_estimate() * kMoves);
    return width < kLeast ? 0 : std::min(width, kMost);
  }

  // Goes from the current placement by one move after the other. Of each number of moves the
  // `width` most level placements are kept; the search ends once more moves have not helped.
  void search_all(int64_t width) {
    constexpr int kPatience = 3;
    std::vector<std::vector<Place>> by_moves(1);
    by_moves[0].push_back({current_, 0});
    double best = candidates_.front().cost;
    int idle = 0;
    for (size_t moves = 0; moves < by_moves.size() && idle < kPatience; ++moves) {
      keep_best(width, by_moves[moves]);
      double level = best;
      for (const Place& place : by_moves[moves]) {
        if (moves > 0) {
          level = std::min(
              level, consider(place.placement) + task_.move_price * static_cast<double>(moves));
        }
      }
      idle = moves == 0 || level < best - kReached ? 0 : idle + 1;
      best = std::min(best, level);
      if (best <= 1 + kReached / 2) return;
      const std::vector<Place> from = by_moves[moves];
      for (const Place& place : from) expand(place.placement, moves, width, by_moves);
    }
  }

  // Sorts by level, and drops all but the first `width` different placements.
  void keep_best(int64_t width, std::vector<Place>& places) const {
    std::ranges::sort(places, {}, &Place::squares);
    std::set<Slots> seen;
    std::vector<Place> kept;
    for (Place& place : places) {
      if (std::ssize(kept) == width) break;
      if (seen.insert(by_rank(place.placement)).second) kept.push_back(std::move(place));
    }
    places = std::move(kept);
  }
  // The experts of each rank in ascending order, by which equal placements are known.
  Slots by_rank(Slots placement) const {
    for (int r = 0; r < slots_.num_ranks(); ++r)
      std::ranges::sort(slots_.of(r, std::span(placement)));
    return placement;
  }

  void expand(const Slots& from, size_t moves, int64_t width,
              std::vector<std::vector<Place>>& by_moves) {
    const std::vector<int32_t> replicas = replicas_of(from);
    Slots next = from;
    const auto reach = [&](const Change& change) {
      apply(change, next);
      const int64_t in = moves_of(next);
      if (in > static_cast<int64_t>(moves) && within_limits(next)) {
        if (std::ssize(by_moves) <= in) by_moves.resize(cells(in + 1));
        auto& places = by_moves[cells(in)];
        places.push_back({next, quick_.of(next).squares});
        if (std::ssize(places) > 64 * width) keep_best(8 * width, places);
      }
      next = from;
    };
    for (int32_t s = 0; s < slots_.num_slots(); ++s) {
      if (replicas[from[s]] > 1) {
        for (int32_t e = 0; e < task_.current.num_experts(); ++e) {
          if (!holds(rank_of(s), e, from)) reach({.slot = s, .expert = e});
        }
      }
      for (int32_t t = slots_.end(rank_of(s)); t < slots_.num_slots(); ++t) {
        if (holds(rank_of(s), from[t], from) || holds(rank_of(t), from[s], from)) continue;
        reach({.slot = s, .expert = from[t], .other_slot = t, .other_expert = from[s]});
      }
    }
  }

  const ServedTask& task_;
  const SlotRanges slots_;
  const Slots current_;
  const Slots proposal_;
  LayerLimits limits_;
  int64_t estimates_;
  QuickCost quick_;
  const std::vector<int64_t> window_;  // [experts] the load of all steps together
  std::vector<Candidate> candidates_;  // the current placement first
};

}  // namespace

std::vector<int32_t> search_served(const ServedTask& task, std::vector<int32_t> proposal) {
  return ServedSearch(task, std::move(proposal)).run();
}

std::vector<std::vector<int32_t>> served_frontier(const ServedTask& task,
                                                  std::vector<int32_t> proposal,
                                                  std::span<const std::vector<int32_t>> others) {
  return ServedSearch(task, std::move(proposal)).frontier(others);
}

}  // namespace trimtab
