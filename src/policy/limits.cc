// SPDX-License-Identifier: Apache-2.0
#include "policy/limits.h"

#include <algorithm>
#include <numeric>

#include "load/replicas.h"
#include "policy/layer_placement.h"
#include "policy/matrix.h"
#include "trimtab/rank_loads.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

bool holds(std::span<const int32_t> placement, int32_t begin, int32_t end, int32_t expert) {
  const auto first = placement.begin() + begin;
  const auto last = placement.begin() + end;
  return std::find(first, last, expert) != last;
}

// One layer on its way from the current placement to the proposal. Loads, receives and duplicates
// follow every change of a slot, so that a try costs about as much as the ranks and the replicas
// that it concerns.
class Walk {
 public:
  Walk(std::span<const int32_t> current, std::span<const int32_t> proposal, SlotRanges slots,
       std::span<const int64_t> expert_load)
      : proposal_(proposal),
        slots_(slots),
        expert_load_(expert_load),
        had_(count_held<int32_t>(slots, current, static_cast<int>(expert_load.size()))),
        held_(had_),
        most_duplicates_(
            std::max(duplicate_slots(current, slots), duplicate_slots(proposal, slots))),
        placement_(current.begin(), current.end()),
        slots_of_(expert_load.size()),
        wanted_(expert_load.size()),
        load_(rank_loads(current, slots, expert_load)),
        received_(cells(slots.num_ranks()), 0),
        duplicates_(duplicate_slots(current, slots)) {
    for (int r = 0; r < slots.num_ranks(); ++r) {
      for (int s = slots.first(r); s < slots.end(r); ++s) rank_.push_back(r);
    }
    for (int32_t s = 0; s < slots.num_slots(); ++s) {
      slots_of_[cells(placement_[cells(s)])].push_back(s);
      wanted_[cells(proposal[cells(s)])].push_back(s);
    }
  }

  // Takes the step that lowers the peak the most, or raises it the least, and keeps to the limits
  // and adds no duplicate. Returns whether there was one.
  bool step(int64_t max_moves, int64_t max_receive) {
    int32_t chosen = -1;
    double chosen_peak = 0;
    for (int32_t slot = 0; slot < slots_.num_slots(); ++slot) {
      if (placement_[cells(slot)] == proposal_[cells(slot)]) continue;
      const std::vector<double> load = load_;
      chain(slot);
      if (moves() <= max_moves && std::ranges::max(received_) <= max_receive &&
          duplicates_ <= most_duplicates_ && (chosen < 0 || peak() < chosen_peak)) {
        chosen = slot;
        chosen_peak = peak();
      }
      take_back();
      load_ = load;
    }
    if (chosen < 0) return false;
    chain(chosen);
    done_.clear();
    load_ = rank_loads(placement_, slots_, expert_load_);
    return true;
  }

  const std::vector<int32_t>& placement() const { return placement_; }
  double peak() const { return std::ranges::max(load_); }
  int64_t moves() const { return moves_; }

 private:
  // Gives a slot its final expert, and so on with every slot that must follow so that no expert is
  // lost: the last replica of a displaced expert goes straight to a slot where the proposal wants
  // it.
  void chain(int32_t slot) {
    for (;;) {
      const int32_t displaced = placement_[cells(slot)];
      done_.push_back({slot, displaced});
      set(slot, proposal_[cells(slot)]);
      if (!slots_of_[cells(displaced)].empty()) return;
      slot = wanted_[cells(displaced)].front();
    }
  }

  void take_back() {
    for (; !done_.empty(); done_.pop_back()) set(done_.back().slot, done_.back().expert);
  }

  void set(int32_t slot, int32_t expert) {
    const int rank = rank_[cells(slot)];
    const int32_t old = placement_[cells(slot)];
    carry(old, -1);
    carry(expert, -1);
    std::erase(slots_of_[cells(old)], slot);
    slots_of_[cells(expert)].push_back(slot);
    placement_[cells(slot)] = expert;
    carry(old, 1);
    carry(expert, 1);
    if (--held_(rank, old) == 0) {
      count_received(rank, old, -1);
    } else {
      --duplicates_;
    }
    if (held_(rank, expert)++ == 0) {
      count_received(rank, expert, 1);
    } else {
      ++duplicates_;
    }
  }

  void count_received(int rank, int32_t expert, int64_t change) {
    if (had_(rank, expert) > 0) return;
    received_[cells(rank)] += change;
    moves_ += change;
  }

  // Adds an expert's load to the ranks that hold it, or takes it away.
  void carry(int32_t expert, double sign) {
    const std::vector<int32_t>& holders = slots_of_[cells(expert)];
    const double share = sign * static_cast<double>(expert_load_[cells(expert)]) /
                         static_cast<double>(holders.size());
    for (const int32_t slot : holders) load_[cells(rank_[cells(slot)])] += share;
  }

  struct Done {
    int32_t slot, expert;
  };

  const std::span<const int32_t> proposal_;
  const SlotRanges slots_;
  const std::span<const int64_t> expert_load_;
  const Matrix<int32_t> had_;  // [ranks, experts] slots of the current placement
  Matrix<int32_t> held_;       // the same of the placement on the way
  const int64_t most_duplicates_;
  std::vector<int> rank_;  // [slots]
  std::vector<int32_t> placement_;
  std::vector<std::vector<int32_t>> slots_of_;  // [experts] on the way
  std::vector<std::vector<int32_t>> wanted_;    // [experts] in the proposal, ascending
  std::vector<double> load_;                    // [ranks]
  std::vector<int64_t> received_;               // [ranks]
  int64_t moves_ = 0;
  int64_t duplicates_;
  std::vector<Done> done_;  // the changes of a try, and what the slots held before
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
  const std::vector<int64_t> in = received(current, proposal, first_slots);
  if (std::accumulate(in.begin(), in.end(), int64_t{0}) <= max_moves &&
      std::ranges::max(in) <= max_receive) {
    return to_vector(proposal);
  }
  Walk walk(current, proposal, first_slots, expert_load);
  std::vector<int32_t> best = to_vector(current);
  double best_peak = walk.peak();
  while (walk.step(max_moves, max_receive)) {
    if (walk.peak() >= best_peak) continue;
    best = walk.placement();
    best_peak = walk.peak();
  }
  return best;
}

std::vector<std::vector<int32_t>> placements_between(std::span<const int32_t> current,
                                                     std::span<const int32_t> proposal,
                                                     std::span<const int32_t> first_slots,
                                                     std::span<const int64_t> expert_load,
                                                     int64_t max_moves, int64_t max_receive) {
  Walk walk(current, proposal, first_slots, expert_load);
  std::vector<std::vector<int32_t>> between;
  std::vector<int64_t> moves;
  while (walk.step(max_moves, max_receive)) {
    // Steps that need no weights belong to the move before.
    if (moves.empty() || walk.moves() != moves.back()) {
      between.emplace_back();
      moves.push_back(walk.moves());
    }
    between.back() = walk.placement();
  }
  return between;
}

}  // namespace trimtab
