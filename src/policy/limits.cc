// SPDX-License-Identifier: Apache-2.0
#include "policy/limits.h"

#include <algorithm>
#include <numeric>

#include "load/replicas.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

bool holds(std::span<const int32_t> placement, int32_t begin, int32_t end, int32_t expert) {
  const auto first = placement.begin() + begin;
  const auto last = placement.begin() + end;
  return std::find(first, last, expert) != last;
}

// One layer on its way from the current placement to the proposal.
class Walk {
 public:
  Walk(std::span<const int32_t> current, std::span<const int32_t> proposal,
       std::span<const int32_t> first_slots, std::span<const int64_t> expert_load)
      : current_(current),
        proposal_(proposal),
        first_slots_(first_slots),
        expert_load_(expert_load) {}

  // The placement after slot `start` has taken its final expert, and every slot that must follow so
  // that no expert is lost: the last replica of a displaced expert goes straight to a slot where
  // the proposal wants it.
  std::vector<int32_t> chain(std::span<const int32_t> placement, size_t start) const {
    std::vector<int32_t> next(placement.begin(), placement.end());
    for (size_t slot = start;;) {
      const int32_t displaced = next[slot];
      next[slot] = proposal_[slot];
      if (std::find(next.begin(), next.end(), displaced) != next.end()) return next;
      slot = 0;
      while (proposal_[slot] != displaced) ++slot;
    }
  }

  bool allowed(std::span<const int32_t> placement, int64_t max_moves, int64_t max_receive) const {
    const std::vector<int64_t> in = received(current_, placement, first_slots_);
    return std::accumulate(in.begin(), in.end(), int64_t{0}) <= max_moves &&
           *std::max_element(in.begin(), in.end()) <= max_receive;
  }

  // Twice the same expert on a rank where neither end of the walk has it.
  bool adds_duplicate(std::span<const int32_t> placement) const {
    return duplicate_slots(placement, first_slots_) >
           std::max(duplicate_slots(current_, first_slots_),
                    duplicate_slots(proposal_, first_slots_));
  }

  double peak(std::span<const int32_t> placement) const {
    const std::vector<double> loads = rank_loads(placement, first_slots_, expert_load_);
    return *std::max_element(loads.begin(), loads.end());
  }

 private:
  std::span<const int32_t> current_;
  std::span<const int32_t> proposal_;
  std::span<const int32_t> first_slots_;
  std::span<const int64_t> expert_load_;
};

}  // namespace

std::vector<int64_t> received(std::span<const int32_t> from, std::span<const int32_t> to,
                              std::span<const int32_t> first_slots) {
  std::vector<int64_t> result(first_slots.size() - 1, 0);
  for (size_t r = 0; r < result.size(); ++r) {
    for (int32_t s = first_slots[r]; s < first_slots[r + 1]; ++s) {
      const int32_t expert = to[s];
      if (holds(from, first_slots[r], first_slots[r + 1], expert) ||
          holds(to, first_slots[r], s, expert))
        continue;
      ++result[r];
    }
  }
  return result;
}

std::vector<int32_t> within_move_limits(std::span<const int32_t> current,
                                        std::span<const int32_t> proposal,
                                        std::span<const int32_t> first_slots,
                                        std::span<const int64_t> expert_load, int64_t max_moves,
                                        int64_t max_receive) {
  const Walk walk(current, proposal, first_slots, expert_load);
  if (walk.allowed(proposal, max_moves, max_receive)) return {proposal.begin(), proposal.end()};
  std::vector<int32_t> placement(current.begin(), current.end());
  std::vector<int32_t> best = placement;
  double best_peak = walk.peak(placement);
  for (size_t step = 0; step < placement.size(); ++step) {
    std::vector<int32_t> chosen;
    double chosen_peak = 0;
    for (size_t slot = 0; slot < placement.size(); ++slot) {
      if (placement[slot] == proposal[slot]) continue;
      std::vector<int32_t> next = walk.chain(placement, slot);
      if (!walk.allowed(next, max_moves, max_receive) || walk.adds_duplicate(next)) continue;
      const double peak = walk.peak(next);
      if (chosen.empty() || peak < chosen_peak) {
        chosen = std::move(next);
        chosen_peak = peak;
      }
    }
    if (chosen.empty()) break;
    placement = std::move(chosen);
    if (chosen_peak < best_peak) {
      best = placement;
      best_peak = chosen_peak;
    }
  }
  return best;
}

std::vector<bool> choose_layers(std::span<const double> gains, std::span<const int64_t> moves,
                                int64_t max_layers, int64_t max_moves) {
  std::vector<size_t> order(gains.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return gains[a] > gains[b]; });
  std::vector<bool> chosen(gains.size(), false);
  for (const size_t layer : order) {
    if (max_layers == 0) break;
    if (moves[layer] > max_moves) continue;
    chosen[layer] = true;
    --max_layers;
    max_moves -= moves[layer];
  }
  return chosen;
}

}  // namespace trimtab
