// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/exact_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "policy/assignment.h"

namespace trimtab {
namespace {

// Ranks that are alike: same slots to search, same load beside them.
struct Kind {
  int slots = 0;
  int32_t full = 0;
  int left = 0;  // ranks not filled yet
};

// Goal::kPeak looks for any map below the limit and tightens it; kMoves for maps at the limit with
// fewer moves.
enum class Goal { kPeak, kMoves };

class ExactSearch {
 public:
  ExactSearch(const LayerTask& task, std::vector<int32_t> known, int64_t max_nodes)
      : task_(task), nodes_left_(max_nodes), best_(std::move(known)), order_(task.num_experts) {
    const auto num_experts = static_cast<size_t>(task.num_experts);
    std::iota(order_.begin(), order_.end(), 0);
    const auto load = [&](int32_t e) { return static_cast<double>(task.episodes->of(e)[0]); };
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int32_t a, int32_t b) { return load(a) > load(b); });
    for (const int32_t e : order_) load_.push_back(load(e));
    for (int r = 0; r < task.num_ranks; ++r) add_rank(task.slots_of(r), task.full[r]);
    copies_.resize(num_experts);
    left_.resize(num_experts);
    size_.resize(num_experts);
    const std::vector<int32_t> known_copies = task.copies(best_);
    for (const int32_t e : order_) hint_.push_back(known_copies[e] - task.full_total);
    best_peak_ = peak_of(best_);
    best_moves_ = moves_of(best_);
  }

  ExactResult run() {
    limit_ = best_peak_ * (1 - kTiny);
    choose_copies(0, task_.num_slots());
    const bool peak_proved = nodes_left_ > 0;
    bool moves_proved = false;
    if (peak_proved && task_.full_total == 0) {
      goal_ = Goal::kMoves;
      limit_ = best_peak_ * (1 + kTiny);
      choose_copies(0, task_.num_slots());
      moves_proved = nodes_left_ > 0;
    }
    return {best_, best_peak_, peak_proved, moves_proved};
  }

 private:
  static constexpr double kTiny = 1e-7;  // shares are floats

  void add_rank(int slots, int32_t full) {
    for (Kind& kind : kinds_) {
      if (kind.slots == slots && kind.full == full) {
        ++kind.left;
        return;
      }
    }
    kinds_.push_back({.slots = slots, .full = full, .left = 1});
  }

  bool done() const { return nodes_left_ <= 0 || (goal_ == Goal::kMoves && best_moves_ == 0); }

  int32_t fewest_copies(size_t i) const {
    const auto needed =
        static_cast<int32_t>(std::ceil(load_[i] / limit_ - kTiny)) - task_.full_total;
    return std::max(needed, task_.min_copies());
  }

  // Experts in order of falling load; `slots` are left for those from i on.
  void choose_copies(size_t i, int slots) {
    if (done() || --nodes_left_ <= 0) return;
    if (i == load_.size()) {
      if (slots == 0) fill_ranks();
      return;
    }
    int64_t others = 0;
    for (size_t j = i + 1; j < load_.size(); ++j) others += fewest_copies(j);
    // Equal loads: only counts that do not rise, the others are the same with names exchanged.
    int most = static_cast<int>(std::min<int64_t>(slots - others, task_.num_ranks));
    if (goal_ == Goal::kPeak && i > 0 && load_[i] == load_[i - 1])
      most = std::min(most, copies_[i - 1]);
    const int32_t least =
        i + 1 == load_.size() ? std::max(slots, fewest_copies(i)) : fewest_copies(i);
    // Outwards from the best known number, where better maps are likely.
    const int32_t hint = std::clamp(hint_[i], least, std::max(least, most));
    for (int32_t step = 0; step <= std::max(hint - least, most - hint); ++step) {
      for (const int32_t c : {hint + step, hint - step}) {
        if (c < least || c > most) continue;
        copies_[i] = c;
        choose_copies(i + 1, slots - c);
        if (step == 0) break;
      }
    }
  }

  void fill_ranks() {
    double all = 0;
    for (size_t i = 0; i < load_.size(); ++i) {
      size_[i] = load_[i] / (copies_[i] + task_.full_total);
      all += size_[i];
      left_[i] = copies_[i];
    }
    // Replicas by falling size, so that each rank starts with the largest that is left.
    by_size_.resize(load_.size());
    std::iota(by_size_.begin(), by_size_.end(), size_t{0});
    std::stable_sort(by_size_.begin(), by_size_.end(),
                     [&](size_t a, size_t b) { return size_[a] > size_[b]; });
    one_of_each_ = all;
    room_ = 0;
    double searched = 0;
    for (size_t i = 0; i < load_.size(); ++i) searched += size_[i] * copies_[i];
    for (const Kind& kind : kinds_) room_ += (limit_ - all * kind.full) * kind.left;
    rest_ = searched;
    contents_.clear();
    lower_moves_ = 0;
    fill_next();
  }

  // Fills one more rank with the largest replica that is left and others.
  void fill_next() {
    if (done() || --nodes_left_ <= 0) return;
    size_t first = 0;
    while (first < by_size_.size() && left_[by_size_[first]] == 0) ++first;
    if (first == by_size_.size()) {
      accept();
      return;
    }
    for (size_t k = 0; k < kinds_.size(); ++k) {
      if (kinds_[k].left == 0 || kinds_[k].slots == 0) continue;
      --kinds_[k].left;
      const double own = limit_ - one_of_each_ * kinds_[k].full;
      room_ -= own;
      kind_of_.push_back(k);
      contents_.emplace_back();
      add(first, own, kinds_[k].slots);
      contents_.pop_back();
      kind_of_.pop_back();
      room_ += own;
      ++kinds_[k].left;
    }
  }

  // Adds the replica by_size_[at] to the rank in hand, which has `room` load and `slots` slots
  // left.
  void add(size_t at, double room, int slots) {
    if (done() || --nodes_left_ <= 0) return;
    const size_t i = by_size_[at];
    room -= size_[i];
    if (room < 0) return;
    --left_[i];
    rest_ -= size_[i];
    contents_.back().push_back(i);
    if (slots == 1) {
      // The other ranks must be able to take what is left.
      if (rest_ <= room_ + kTiny) close_rank();
    } else {
      for (size_t next = at + 1; next < by_size_.size(); ++next) {
        if (left_[by_size_[next]] == 0) continue;
        // From here on replicas only get smaller: too small to leave no more than the others can
        // take?
        if (rest_ - size_[by_size_[next]] * (slots - 1) > room_ + kTiny) break;
        add(next, room, slots - 1);
      }
    }
    contents_.back().pop_back();
    rest_ += size_[i];
    ++left_[i];
  }

  void close_rank() {
    if (goal_ == Goal::kPeak) return fill_next();
    const int missing = fewest_missing();
    lower_moves_ += missing;
    if (lower_moves_ < best_moves_) fill_next();
    lower_moves_ -= missing;
  }

  // Weights that the rank just filled lacks on whichever rank of its kind it becomes.
  int fewest_missing() const {
    int fewest = std::numeric_limits<int>::max();
    const Kind& kind = kinds_[kind_of_.back()];
    for (int r = 0; r < task_.num_ranks; ++r) {
      if (task_.slots_of(r) != kind.slots || task_.full[r] != kind.full) continue;
      int missing = 0;
      for (const size_t i : contents_.back()) missing += task_.holds(r, order_[i]) ? 0 : 1;
      fewest = std::min(fewest, missing);
    }
    return fewest;
  }

  void accept() {
    std::vector<int32_t> map = named();
    const double peak = peak_of(map);
    const int moves = moves_of(map);
    if (goal_ == Goal::kPeak) {
      if (peak >= best_peak_) return;
      limit_ = peak * (1 - kTiny);
    } else if (moves >= best_moves_) {
      return;
    }
    best_ = std::move(map);
    best_peak_ = std::min(best_peak_, peak);
    best_moves_ = moves;
  }

  // Gives the contents to ranks of their kind so that the fewest weights move.
  std::vector<int32_t> named() const {
    std::vector<int32_t> map(task_.num_slots());
    for (size_t k = 0; k < kinds_.size(); ++k) {
      std::vector<int> ranks;
      std::vector<const std::vector<size_t>*> contents;
      for (int r = 0; r < task_.num_ranks; ++r) {
        if (task_.slots_of(r) == kinds_[k].slots && task_.full[r] == kinds_[k].full) {
          ranks.push_back(r);
        }
      }
      for (size_t c = 0; c < contents_.size(); ++c) {
        if (kind_of_[c] == k) contents.push_back(&contents_[c]);
      }
      if (contents.empty()) continue;  // a kind without slots to search
      std::vector<int64_t> cost;
      for (const auto* content : contents) {
        for (const int r : ranks) {
          int64_t missing = 0;
          for (const size_t i : *content) missing += task_.holds(r, order_[i]) ? 0 : 1;
          cost.push_back(missing);
        }
      }
      const std::vector<int> rank_of = cheapest_assignment(cost, static_cast<int>(contents.size()));
      for (size_t c = 0; c < contents.size(); ++c) {
        const auto r = static_cast<size_t>(ranks[rank_of[c]]);
        auto slot = static_cast<size_t>(task_.first_slots[r]);
        for (const size_t i : *contents[c]) map[slot++] = order_[i];
      }
    }
    return map;
  }

  double peak_of(const std::vector<int32_t>& map) const {
    const std::vector<int32_t> copies = task_.copies(map);
    std::vector<double> size(copies.size());
    double all = 0;
    for (size_t i = 0; i < size.size(); ++i) {
      const auto e = static_cast<size_t>(order_[i]);
      size[e] = load_[i] / copies[e];
      all += size[e];
    }
    double peak = 0;
    for (int r = 0; r < task_.num_ranks; ++r) {
      double sum = all * task_.full[r];
      for (int32_t s = task_.first_slots[r]; s < task_.first_slots[r + 1]; ++s) {
        sum += size[static_cast<size_t>(map[s])];
      }
      peak = std::max(peak, sum);
    }
    return peak;
  }

  int moves_of(const std::vector<int32_t>& map) const {
    int moves = 0;
    for (int r = 0; r < task_.num_ranks; ++r) moves += task_.received(r, map);
    return moves;
  }

  const LayerTask& task_;
  int64_t nodes_left_;
  std::vector<int32_t> best_;
  double best_peak_ = 0;
  int best_moves_ = 0;
  Goal goal_ = Goal::kPeak;
  double limit_ = 0;            // no rank may exceed it
  std::vector<int32_t> order_;  // experts by falling load; i below counts in this order
  std::vector<double> load_;    // [i]
  std::vector<Kind> kinds_;
  std::vector<int32_t> copies_;                // [i] among the searched slots
  std::vector<int32_t> hint_;                  // [i] the same in the best map known at the start
  std::vector<int32_t> left_;                  // [i] copies not placed yet
  std::vector<double> size_;                   // [i] of one replica
  std::vector<size_t> by_size_;                // i by falling replica size
  double one_of_each_ = 0;                     // load of a full set of experts
  double room_ = 0;                            // what the ranks not filled yet can take
  double rest_ = 0;                            // load of the replicas not placed yet
  std::vector<std::vector<size_t>> contents_;  // ranks filled so far
  std::vector<size_t> kind_of_;                // their kinds
  int lower_moves_ = 0;                        // of the ranks filled so far
};

}  // namespace

ExactResult search_exactly(const LayerTask& task, std::vector<int32_t> known, int64_t max_nodes) {
  return ExactSearch(task, std::move(known), max_nodes).run();
}

}  // namespace trimtab
