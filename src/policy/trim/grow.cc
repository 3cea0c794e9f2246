// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/grow.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "policy/layer_placement.h"
#include "policy/trim/exchange_search.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

using Slots = std::vector<int32_t>;

constexpr int64_t kLevels = 24;  // numbers of moves that the work should suffice for

// Loads of a rank in an episode that change, at most, and are computed.
int64_t cost_of_change(const LayerTask& task) {
  return int64_t{task.num_ranks()} * task.episodes->count;
}

// One slot gets an expert; with other_slot >= 0 two slots exchange theirs.
struct Change {
  int32_t slot = -1, expert = -1, other_slot = -1;
};

// A placement that a change of a kept one would give.
struct Candidate {
  float value = 0;
  int parent = 0;
  Change change;
};

class Grower {
 public:
  Grower(const LayerTask& task, std::span<const int32_t> current, const LayerLimits& limits,
         int64_t work)
      : task_(task),
        limits_(limits),
        episodes_(task.episodes->count),
        current_(to_vector(current)),
        work_(work),
        width_(width_of(work)),
        is_large_(work_to_grow(task) > work) {
    for (int r = 0; r < task.num_ranks(); ++r) {
      for (int s = task.slots.first(r); s < task.slots.end(r); ++s) rank_.push_back(r);
    }
  }

  void run(const std::function<void(const Slots&)>& visit) {
    constexpr int kPatience = 4;
    std::vector<Slots> kept = {current_};
    float best = std::numeric_limits<float>::infinity();
    int idle = 0;
    for (int64_t moves = 0; idle < kPatience && work_ > 0; ++moves) {
      if (moves > 0) {
        kept = take(moves, visit);
        if (kept.empty() && waiting_.empty()) return;
        idle = best_taken_ < best - 1e-6F ? 0 : idle + 1;
        best = std::min(best, best_taken_);
      }
      if (moves >= limits_.max_moves) return;
      for (const Slots& placement : kept) {
        if (work_ > 0) expand(placement, moves);
      }
    }
  }

 private:
  // The candidates of one number of moves, with the placements that they start from.
  struct Level {
    std::vector<Slots> parents;
    std::vector<Candidate> candidates;
    float cut = std::numeric_limits<float>::infinity();  // candidates from here on were left out
  };

  int width_of(int64_t work) const {
    constexpr int64_t kMost = 24;
    return static_cast<int>(
        std::clamp<int64_t>(work / std::max<int64_t>(work_to_grow(task_), 1), 1, kMost));
  }

  static Slots applied(const Change& change, Slots placement) {
    if (change.other_slot < 0) {
      placement[cells(change.slot)] = change.expert;
    } else {
      std::swap(placement[cells(change.slot)], placement[cells(change.other_slot)]);
    }
    return placement;
  }

  // Shows the best placements of so many moves, and returns those to go on from.
  std::vector<Slots> take(int64_t moves, const std::function<void(const Slots&)>& visit) {
    std::vector<Slots> kept;
    best_taken_ = std::numeric_limits<float>::infinity();
    if (waiting_.empty() || waiting_.front().first != moves) return kept;
    Level level = std::move(waiting_.front().second);
    waiting_.erase(waiting_.begin());
    trim(level, std::ssize(level.candidates));
    std::set<Slots> seen;
    for (const Candidate& one : level.candidates) {
      if (std::ssize(kept) == width_) break;
      Slots next = applied(one.change, level.parents[cells(one.parent)]);
      if (!seen.insert(by_rank(next)).second) continue;
      best_taken_ = std::min(best_taken_, one.value);
      kept.push_back(std::move(next));
    }
    for (const Slots& placement : kept) visit(placement);
    return kept;
  }

  Slots by_rank(Slots placement) const {
    for (int r = 0; r < task_.num_ranks(); ++r)
      std::ranges::sort(task_.slots.of(r, std::span(placement)));
    return placement;
  }

  // Keeps the first `count` candidates by value; ties go to the one that was found first.
  static void trim(Level& level, int64_t count) {
    std::ranges::stable_sort(level.candidates, {}, &Candidate::value);
    if (std::ssize(level.candidates) <= count) return;
    level.candidates.resize(cells(count));
    level.cut = level.candidates.back().value;
  }

  Level& level_of(int64_t moves) {
    auto at = waiting_.begin();
    while (at != waiting_.end() && at->first < moves) ++at;
    if (at == waiting_.end() || at->first != moves) at = waiting_.insert(at, {moves, Level{}});
    return at->second;
  }

  void expand(const Slots& from, int64_t moves) {
    from_ = &from;
    moves_ = moves;
    parent_of_.clear();
    replicas_ = task_.replicas(from);
    on_rank_ = count_held<uint8_t>(task_.slots, from, task_.num_experts);
    holders_.assign(cells(task_.num_experts), {});
    for (int32_t s = 0; s < task_.num_slots(); ++s)
      holders_[cells(from[cells(s)])].push_back(rank_[cells(s)]);
    received_.clear();
    for (int r = 0; r < task_.num_ranks(); ++r) received_.push_back(task_.received(r, from));
    sum_up(from);
    find_hot();
    for (int32_t s = 0; s < task_.num_slots(); ++s) {
      const int32_t out = from[cells(s)];
      if (replicas_[cells(out)] > task_.full_total + task_.min_replicas()) {
        for (int32_t e = 0; e < task_.num_experts; ++e) {
          if (is_hot_expert_[cells(e)]) try_replica(s, e);
        }
      }
      for (int32_t t = task_.slots.end(rank_[cells(s)]); t < task_.num_slots(); ++t) {
        if (is_hot_rank_[cells(rank_[cells(s)])] || is_hot_rank_[cells(rank_[cells(t)])])
          try_exchange(s, t);
      }
    }
  }

  // In large layers only the ranks that are the busiest in most episodes give load away, so that
  // the work suffices for more moves.
  void find_hot() {
    constexpr size_t kHotRanks = 2;
    is_hot_rank_.assign(cells(task_.num_ranks()), !is_large_);
    is_hot_expert_.assign(cells(task_.num_experts), !is_large_);
    if (!is_large_) return;
    std::vector<float> peaks(cells(task_.num_ranks()), 0);
    for (int k = 0; k < episodes_; ++k) {
      int busiest = 0;
      for (int r = 1; r < task_.num_ranks(); ++r) {
        if (load_(r, k) > load_(busiest, k)) busiest = r;
      }
      peaks[cells(busiest)] += task_.episodes->weight[cells(k)] * load_(busiest, k);
    }
    const std::vector<int32_t> order = sorted_ids(
        task_.num_ranks(), [&](int32_t a, int32_t b) { return peaks[cells(a)] > peaks[cells(b)]; });
    for (size_t i = 0; i < order.size() && i < kHotRanks; ++i) {
      is_hot_rank_[cells(order[i])] = true;
      for (const int32_t e : task_.slots.of(order[i], std::span(std::as_const(*from_))))
        is_hot_expert_[cells(e)] = true;
    }
  }

  void sum_up(const Slots& from) {
    load_ = Matrix<float>(task_.num_ranks(), episodes_, 0);
    for (int32_t s = 0; s < task_.num_slots(); ++s) {
      const int32_t e = from[cells(s)];
      add(rank_[cells(s)], e, share_of(1, replicas_[cells(e)]), load_);
    }
    trial_ = load_;
  }

  void add(int rank, int32_t e, float factor, Matrix<float>& load) const {
    const float* share = task_.episodes->of(e).data();
    float* to = load[rank].data();
    for (int k = 0; k < episodes_; ++k) to[k] += factor * share[k];
  }

  // What a rank receives more when it gives `out` away for `in`.
  int received_more(int rank, int32_t out, int32_t in) const {
    return int{!task_.holds(rank, in)} - int{!task_.holds(rank, out)};
  }

  void try_replica(int32_t slot, int32_t in) {
    const int rank = rank_[cells(slot)];
    const int32_t out = (*from_)[cells(slot)];
    if (on_rank_(rank, in) != 0) return;
    const int more = received_more(rank, out, in);
    if (more <= 0 || received_[cells(rank)] + more > limits_.max_receive) return;
    const int32_t outs = replicas_[cells(out)], ins = replicas_[cells(in)];
    const float out_more = share_of(1, outs - 1) - share_of(1, outs);
    const float in_more = ins == 0 ? 0 : share_of(1, ins + 1) - share_of(1, ins);
    for (const int32_t r : holders_[cells(out)]) add(r, out, out_more, trial_);
    for (const int32_t r : holders_[cells(in)]) add(r, in, in_more, trial_);
    add(rank, out, -share_of(1, outs - 1), trial_);
    add(rank, in, share_of(1, ins + 1), trial_);
    offer({.slot = slot, .expert = in}, more);
    restore(rank);
    for (const int32_t r : holders_[cells(out)]) restore(r);
    for (const int32_t r : holders_[cells(in)]) restore(r);
  }

  void try_exchange(int32_t slot, int32_t other) {
    const int a = rank_[cells(slot)], b = rank_[cells(other)];
    const int32_t p = (*from_)[cells(slot)], q = (*from_)[cells(other)];
    if (on_rank_(b, p) != 0 || on_rank_(a, q) != 0) return;
    const int more_a = received_more(a, p, q), more_b = received_more(b, q, p);
    if (more_a + more_b <= 0 || received_[cells(a)] + more_a > limits_.max_receive ||
        received_[cells(b)] + more_b > limits_.max_receive)
      return;
    const float one_p = share_of(1, replicas_[cells(p)]), one_q = share_of(1, replicas_[cells(q)]);
    add(a, p, -one_p, trial_);
    add(a, q, one_q, trial_);
    add(b, q, -one_q, trial_);
    add(b, p, one_p, trial_);
    offer({.slot = slot, .expert = q, .other_slot = other}, more_a + more_b);
    restore(a);
    restore(b);
  }

  void restore(int rank) {
    const std::span<const float> from = std::as_const(load_)[rank];
    std::ranges::copy(from, trial_[rank].begin());
  }

  // The mean peak of the trial, and what squares count beside it.
  float value() {
    constexpr float kLevelling = 0.05F;
    peak_.assign(cells(episodes_), 0);
    square_.assign(cells(episodes_), 0);
    for (int r = 0; r < task_.num_ranks(); ++r) {
      const float* load = std::as_const(trial_)[r].data();
      for (int k = 0; k < episodes_; ++k) {
        peak_[cells(k)] = std::max(peak_[cells(k)], load[k]);
        square_[cells(k)] += load[k] * load[k];
      }
    }
    const float scale = kLevelling / static_cast<float>(task_.num_ranks());
    float sum = 0;
    for (int k = 0; k < episodes_; ++k) {
      sum += task_.episodes->weight[cells(k)] * (peak_[cells(k)] + scale * square_[cells(k)]);
    }
    return sum;
  }

  void offer(const Change& change, int more) {
    const int64_t moves = moves_ + more;
    if (moves > limits_.max_moves) return;
    work_ -= cost_of_change(task_);
    Level& level = level_of(moves);
    const float worth = value();
    const int64_t most = 16 * width_;
    if (std::ssize(level.candidates) >= 2 * most) trim(level, most);
    if (worth >= level.cut) return;
    // A placement is stored with the levels that its candidates are on.
    auto known = std::ranges::find(parent_of_, moves, &std::pair<int64_t, int>::first);
    if (known == parent_of_.end()) {
      level.parents.push_back(*from_);
      parent_of_.emplace_back(moves, static_cast<int>(level.parents.size()) - 1);
      known = std::prev(parent_of_.end());
    }
    level.candidates.push_back({worth, known->second, change});
  }

  const LayerTask& task_;
  const LayerLimits limits_;
  const int episodes_;
  const Slots current_;
  int64_t work_;
  const int width_;        // the placements of each number of moves that the search goes on from
  const bool is_large_;    // the work does not suffice for all changes
  std::vector<int> rank_;  // [searched slots]
  std::vector<std::pair<int64_t, Level>> waiting_;  // by ascending moves
  float best_taken_ = 0;
  // Of the placement that is being expanded.
  const Slots* from_ = nullptr;
  int64_t moves_ = 0;
  std::vector<std::pair<int64_t, int>> parent_of_;  // its place among a level's parents, by moves
  std::vector<int32_t> replicas_;                   // [experts]
  std::vector<std::vector<int32_t>> holders_;       // [experts] ranks
  std::vector<int64_t> received_;                   // [ranks]
  Matrix<uint8_t> on_rank_;                         // [ranks, experts]
  std::vector<bool> is_hot_rank_, is_hot_expert_;   // [ranks], [experts] those that changes concern
  Matrix<float> load_, trial_;                      // [ranks, episodes]
  std::vector<float> peak_, square_;                // [episodes]
};

}  // namespace

int64_t work_to_grow(const LayerTask& task) {
  // Every slot may get every expert, and any two may change places.
  const int64_t slots = task.num_slots();
  const int64_t changes =
      slots * slots / 2 + std::max<int64_t>(slots - task.num_experts, 1) * task.num_experts;
  return changes * cost_of_change(task) * kLevels;
}

void grow(const LayerTask& task, std::span<const int32_t> current, const LayerLimits& limits,
          int64_t work, const std::function<void(const std::vector<int32_t>&)>& visit) {
  Grower(task, current, limits, work).run(visit);
}

}  // namespace trimtab
