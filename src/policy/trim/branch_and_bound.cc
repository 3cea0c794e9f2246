// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/branch_and_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "policy/assignment.h"
#include "policy/layer_placement.h"
#include "trimtab/policy.h"

namespace trimtab {
namespace {

// A kind of ranks that are alike: they have as many slots to search and the same load beside them.
struct Kind {
  int slots = 0;
  int32_t full = 0;
  int left = 0;  // ranks not filled yet
};

// kPeak looks for any placement below the limit and lowers the limit to it. kMoves looks for
// placements at the limit with fewer moves.
enum class Goal { kPeak, kMoves };

class BranchAndBound {
 public:
  BranchAndBound(const LayerTask& task, std::vector<int32_t> known, int64_t max_nodes,
                 const std::atomic<bool>* stop)
      : task_(task),
        experts_(task.num_experts),
        nodes_left_(max_nodes),
        stop_(stop),
        best_(std::move(known)),
        replicas_(experts_),
        left_(experts_),
        size_(experts_) {
    const auto load = [&](int32_t e) { return double{task.episodes->of(e)[0]}; };
    order_ = sorted_ids(experts_, [&](int32_t a, int32_t b) { return load(a) > load(b); });
    for (const int32_t e : order_) load_.push_back(load(e));
    for (int r = 0; r < task.num_ranks(); ++r) add_rank(task.slots.count(r), task.full[r]);
    const std::vector<int32_t> known_replicas = task.replicas(best_);
    for (const int32_t e : order_) hint_.push_back(known_replicas[e] - task.full_total);
    best_peak_ = peak_of(best_);
    best_moves_ = task.moves(best_);
  }

  BranchAndBoundResult run() {
    limit_ = best_peak_ * (1 - kTiny);
    choose_replicas(0, task_.num_slots());
    const bool peak_proved = nodes_left_ > 0;
    bool moves_proved = false;
    if (peak_proved && task_.full_total == 0) {
      goal_ = Goal::kMoves;
      limit_ = best_peak_ * (1 + kTiny);
      choose_replicas(0, task_.num_slots());
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

  // Whether a step is left, and takes it.
  bool next_node() {
    constexpr int64_t kNodesBetweenLooks = 1 << 16;
    if (nodes_left_ % kNodesBetweenLooks == 0) check_stop(stop_);
    return --nodes_left_ > 0;
  }

  bool done() const { return nodes_left_ <= 0 || (goal_ == Goal::kMoves && best_moves_ == 0); }

  int32_t fewest_replicas(int i) const {
    const auto needed = static_cast<int32_t>(std::ceil(load_[i] / limit_ - kTiny));
    return std::max(needed - task_.full_total, task_.min_replicas());
  }

  // Goes through the experts in order of falling load; `slots` are left for those from i on.
  void choose_replicas(int i, int slots) {
    if (done() || !next_node()) return;
    if (i == experts_) {
      if (slots == 0) fill_ranks();
      return;
    }
    int32_t others = 0;
    for (int j = i + 1; j < experts_; ++j) others += fewest_replicas(j);
    // Equal loads: only counts that do not rise, the others are the same with names exchanged.
    int32_t most = std::min(slots - others, task_.num_ranks());
    if (goal_ == Goal::kPeak && i > 0 && load_[i] == load_[i - 1])
      most = std::min(most, replicas_[i - 1]);
    const int32_t least =
        i + 1 == experts_ ? std::max(slots, fewest_replicas(i)) : fewest_replicas(i);
    // Outwards from the best known number, where better placements are likely.
    const int32_t hint = std::clamp(hint_[i], least, std::max(least, most));
    for (int32_t step = 0; step <= std::max(hint - least, most - hint); ++step) {
      for (const int32_t c : {hint + step, hint - step}) {
        if (c < least || c > most) continue;
        replicas_[i] = c;
        choose_replicas(i + 1, slots - c);
        if (step == 0) break;
      }
    }
  }

  void fill_ranks() {
    double all = 0;
    for (int i = 0; i < experts_; ++i) {
      size_[i] = load_[i] / (replicas_[i] + task_.full_total);
      all += size_[i];
      left_[i] = replicas_[i];
    }
    // Replicas by falling size, so that each rank starts with the largest that is left.
    by_size_ = sorted_ids(experts_, [&](int32_t a, int32_t b) { return size_[a] > size_[b]; });
    one_of_each_ = all;
    capacity_ = 0;
    double searched = 0;
    for (int i = 0; i < experts_; ++i) searched += size_[i] * replicas_[i];
    for (const Kind& kind : kinds_) capacity_ += (limit_ - all * kind.full) * kind.left;
    rest_ = searched;
    contents_.clear();
    lower_moves_ = 0;
    fill_next();
  }

  // Fills one more rank: with the largest replica that is left, and with others.
  void fill_next() {
    if (done() || !next_node()) return;
    int first = 0;
    while (first < experts_ && left_[by_size_[first]] == 0) ++first;
    if (first == experts_) {
      accept();
      return;
    }
    for (int k = 0; k < std::ssize(kinds_); ++k) {
      if (kinds_[k].left == 0 || kinds_[k].slots == 0) continue;
      --kinds_[k].left;
      const double own = limit_ - one_of_each_ * kinds_[k].full;
      capacity_ -= own;
      kind_of_.push_back(k);
      contents_.emplace_back();
      add(first, own, kinds_[k].slots);
      contents_.pop_back();
      kind_of_.pop_back();
      capacity_ += own;
      ++kinds_[k].left;
    }
  }

  // Adds the replica by_size_[at] to the rank in hand, which can take `capacity` load more in
  // `slots` slots.
  void add(int at, double capacity, int slots) {
    if (done() || !next_node()) return;
    const int32_t i = by_size_[at];
    capacity -= size_[i];
    if (capacity < 0) return;
    --left_[i];
    rest_ -= size_[i];
    contents_.back().push_back(i);
    if (slots == 1) {
      // The other ranks must be able to take what is left.
      if (rest_ <= capacity_ + kTiny) close_rank();
    } else {
      for (int next = at + 1; next < experts_; ++next) {
        if (left_[by_size_[next]] == 0) continue;
        // From here on replicas only get smaller: too small to leave no more than the others can
        // take?
        if (rest_ - size_[by_size_[next]] * (slots - 1) > capacity_ + kTiny) break;
        add(next, capacity, slots - 1);
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

  bool is_of(int rank, const Kind& kind) const {
    return task_.slots.count(rank) == kind.slots && task_.full[rank] == kind.full;
  }

  int missing(int rank, const std::vector<int32_t>& content) const {
    int missing = 0;
    for (const int32_t i : content) missing += task_.holds(rank, order_[i]) ? 0 : 1;
    return missing;
  }

  // The rank just filled lacks at least this many weights, whichever rank of its kind it becomes.
  int fewest_missing() const {
    int fewest = std::numeric_limits<int>::max();
    for (int r = 0; r < task_.num_ranks(); ++r) {
      if (!is_of(r, kinds_[kind_of_.back()])) continue;
      fewest = std::min(fewest, missing(r, contents_.back()));
    }
    return fewest;
  }

  void accept() {
    std::vector<int32_t> placement = named();
    const double peak = peak_of(placement);
    const int moves = task_.moves(placement);
    if (goal_ == Goal::kPeak) {
      if (peak >= best_peak_) return;
      limit_ = peak * (1 - kTiny);
    } else if (moves >= best_moves_) {
      return;
    }
    best_ = std::move(placement);
    best_peak_ = std::min(best_peak_, peak);
    best_moves_ = moves;
  }

  // Gives the contents to ranks of their kind so that the fewest weights move.
  std::vector<int32_t> named() const {
    std::vector<int32_t> placement(task_.num_slots());
    for (int k = 0; k < std::ssize(kinds_); ++k) {
      std::vector<int> ranks;
      std::vector<const std::vector<int32_t>*> contents;
      for (int r = 0; r < task_.num_ranks(); ++r) {
        if (is_of(r, kinds_[k])) ranks.push_back(r);
      }
      for (int64_t c = 0; c < std::ssize(contents_); ++c) {
        if (kind_of_[c] == k) contents.push_back(&contents_[c]);
      }
      if (contents.empty()) continue;  // a kind without slots to search
      std::vector<int64_t> cost;
      for (const auto* content : contents) {
        for (const int r : ranks) cost.push_back(missing(r, *content));
      }
      const std::vector<int> rank_of = cheapest_assignment(Table(cost, std::ssize(contents)));
      for (int64_t c = 0; c < std::ssize(contents); ++c) {
        int slot = task_.slots.first(ranks[rank_of[c]]);
        for (const int32_t i : *contents[c]) placement[slot++] = order_[i];
      }
    }
    return placement;
  }

  double peak_of(std::span<const int32_t> placement) const {
    const std::vector<int32_t> replicas = task_.replicas(placement);
    std::vector<double> size(experts_);
    double all = 0;
    for (int i = 0; i < experts_; ++i) {
      const int32_t e = order_[i];
      size[e] = load_[i] / replicas[e];
      all += size[e];
    }
    double peak = 0;
    for (int r = 0; r < task_.num_ranks(); ++r) {
      double sum = all * task_.full[r];
      for (const int32_t e : task_.slots.of(r, placement)) sum += size[e];
      peak = std::max(peak, sum);
    }
    return peak;
  }

  const LayerTask& task_;
  const int experts_;
  int64_t nodes_left_;
  const std::atomic<bool>* stop_;
  std::vector<int32_t> best_;
  double best_peak_ = 0;
  int best_moves_ = 0;
  Goal goal_ = Goal::kPeak;
  double limit_ = 0;            // no rank may exceed it
  std::vector<int32_t> order_;  // experts by falling load; i below counts in this order
  std::vector<double> load_;    // [i]
  std::vector<Kind> kinds_;
  std::vector<int32_t> replicas_;               // [i] among the searched slots
  std::vector<int32_t> hint_;                   // [i] the same in the best placement at the start
  std::vector<int32_t> left_;                   // [i] replicas not placed yet
  std::vector<double> size_;                    // [i] the load of one replica
  std::vector<int32_t> by_size_;                // i by falling replica size
  double one_of_each_ = 0;                      // load of a full set of experts
  double capacity_ = 0;                         // load that the ranks not filled yet can take
  double rest_ = 0;                             // load of the replicas not placed yet
  std::vector<std::vector<int32_t>> contents_;  // [ranks filled so far] the i of each rank
  std::vector<int> kind_of_;                    // [ranks filled so far]
  int lower_moves_ = 0;                         // the fewest moves of the ranks filled so far
};

}  // namespace

BranchAndBoundResult branch_and_bound(const LayerTask& task, std::vector<int32_t> known,
                                      int64_t max_nodes, const std::atomic<bool>* stop) {
  return BranchAndBound(task, std::move(known), max_nodes, stop).run();
}

}  // namespace trimtab
