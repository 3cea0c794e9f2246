// SPDX-License-Identifier: Apache-2.0
#include "policy/small_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trimtab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  // of a peak: more than rounding can do
constexpr double kSlack = 1e-6;     // of a peak, where a wrong yes only costs steps
constexpr int kPeaks = 4;           // tried where the whole proof is out of reach

// Replicas of each expert that make the largest one as small as the slots allow: [experts].
std::vector<int> greedy_replicas(const BoundedLayer& layer) {
  std::vector<int> replicas(layer.load.size(), 1);
  std::vector<double> size(layer.load);
  for (int64_t left = layer.num_slots - std::ssize(layer.load); left > 0; --left) {
    size_t largest = layer.load.size();
    for (size_t e = 0; e < layer.load.size(); ++e) {
      if (replicas[e] == layer.num_ranks()) continue;
      if (largest == layer.load.size() || size[e] > size[largest]) largest = e;
    }
    if (largest == layer.load.size()) break;  // every rank has every expert
    size[largest] = layer.load[largest] / ++replicas[largest];
  }
  return replicas;
}

class PeakSearch {
 public:
  PeakSearch(const BoundedLayer& layer, double high)
      : load_(layer.load),
        experts_(static_cast<int>(load_.size())),
        ranks_(static_cast<int>(layer.num_ranks())),
        slots_(static_cast<int>(layer.num_slots)),
        peak_(high),
        hint_(greedy_replicas(layer)),
        least_after_(experts_ + 1),
        replicas_(experts_),
        left_(experts_),
        size_(experts_),
        by_size_(experts_) {
    for (const int slots : layer.slots) {
      if (kinds_.empty() || kinds_.back().slots != slots) kinds_.push_back({.slots = slots});
      ++kinds_.back().left;
    }
  }

  // The least peak that was found.
  double peak() const { return peak_; }

  // Looks for placements below `limit`. True when all were tried: then none has a peak below
  // `limit` and below peak(). Takes the steps that it needs from `nodes`.
  bool search(double limit, int64_t& nodes) {
    nodes_ = nodes;
    // No peak is above the sum of the loads.
    const double all = std::accumulate(load_.begin(), load_.end(), 0.0);
    limit_ = std::min({limit, peak_, 2 * all}) * (1 - kRounding);
    find_least();
    if (least_after_[0] <= slots_) choose_replicas(0, slots_);
    nodes = std::max<int64_t>(nodes_, 0);
    return nodes_ > 0;
  }

 private:
  // Ranks with the same number of slots.
  struct RankKind {
    int slots = 0;
    int left = 0;  // ranks not filled yet
  };

  int fewest_replicas(int i) const {
    if (!(load_[i] > limit_)) return 1;
    return static_cast<int>(std::min(std::ceil(load_[i] / limit_ - kRounding), 1.0 + slots_));
  }

  void find_least() {
    least_after_[experts_] = 0;
    for (int i = experts_; i-- > 0;) least_after_[i] = least_after_[i + 1] + fewest_replicas(i);
  }

  // Goes through the experts in order of falling load; `slots` are left for those from i on.
  void choose_replicas(int i, int slots) {
    if (--nodes_ <= 0) return;
    if (i == experts_) return fill_ranks();
    int most = std::min(slots - least_after_[i + 1], ranks_);
    // Equal loads: only counts that do not rise; the others are the same with names exchanged.
    if (i > 0 && load_[i] == load_[i - 1]) most = std::min(most, replicas_[i - 1]);
    const int fewest = fewest_replicas(i);
    const int least = i + 1 == experts_ ? std::max(slots, fewest) : fewest;
    if (least > most) return;
    // Outwards from the greedy number, where good placements are likely.
    const int hint = std::clamp(hint_[i], least, most);
    for (int step = 0; step <= std::max(hint - least, most - hint); ++step) {
      for (const int c : {hint + step, hint - step}) {
        if (c < least || c > most || c < fewest_replicas(i)) continue;
        replicas_[i] = c;
        choose_replicas(i + 1, slots - c);
        if (step == 0) break;
      }
    }
  }

  void fill_ranks() {
    for (int i = 0; i < experts_; ++i) {
      size_[i] = load_[i] / replicas_[i];
      if (size_[i] > limit_) return;  // the limit has fallen since the number was chosen
      left_[i] = replicas_[i];
    }
    // Replicas by falling size, so that each rank starts with the largest that is left.
    std::iota(by_size_.begin(), by_size_.end(), 0);
    std::ranges::sort(
        by_size_, [&](int a, int b) { return size_[a] != size_[b] ? size_[a] > size_[b] : a < b; });
    if (kinds_.size() == 1 && kinds_.front().slots == 2 && !pairs_fit()) return;
    rest_ = 0;
    for (int i = 0; i < experts_; ++i) rest_ += load_[i];
    empty_ = ranks_;
    found_ = 0;
    fill_next();
  }

  // Whether the largest replica with the smallest, the second with the second smallest and so on
  // stay below the limit. No other pairs have a lower peak.
  bool pairs_fit() {
    int low = 0;
    int high = experts_ - 1;
    int of_low = replicas_[by_size_[0]];
    int of_high = replicas_[by_size_[high]];
    while (low < high) {
      if (size_[by_size_[low]] + size_[by_size_[high]] > limit_) return false;
      const int pairs = std::min(of_low, of_high);
      of_low -= pairs;
      of_high -= pairs;
      if (of_low == 0) of_low = replicas_[by_size_[++low]];
      if (of_high == 0 && low < high) of_high = replicas_[by_size_[--high]];
    }
    return true;
  }

  // Fills one more rank: with the largest replica that is left, and with others.
  void fill_next() {
    if (--nodes_ <= 0 || found_ > limit_) return;
    int first = 0;
    while (first < experts_ && left_[by_size_[first]] == 0) ++first;
    if (first == experts_) {
      peak_ = found_;
      limit_ = found_ * (1 - kRounding);
      find_least();
      return;
    }
    for (RankKind& kind : kinds_) {
      if (kind.left == 0) continue;
      --kind.left;
      --empty_;
      add(first, 0, kind.slots);
      ++empty_;
      ++kind.left;
    }
  }

  // Adds the replica by_size_[at] to the rank in hand, which holds `load` and has `slots` slots
  // left.
  void add(int at, double load, int slots) {
    if (--nodes_ <= 0) return;
    const int i = by_size_[at];
    load += size_[i];
    if (load > limit_) return;
    --left_[i];
    rest_ -= size_[i];
    // The ranks that are still empty must be able to take what this one leaves, rounding aside.
    const double others = limit_ * (empty_ + kSlack);
    if (slots == 1) {
      if (rest_ <= others) {
        const double before = found_;
        found_ = std::max(found_, load);
        fill_next();
        found_ = before;
      }
    } else {
      for (int next = at + 1; next < experts_; ++next) {
        if (left_[by_size_[next]] == 0) continue;
        // From here on replicas only get smaller.
        if (rest_ - size_[by_size_[next]] * (slots - 1) > others) break;
        add(next, load, slots - 1);
      }
    }
    rest_ += size_[i];
    ++left_[i];
  }

  const std::vector<double>& load_;
  int experts_, ranks_, slots_;
  double peak_;                   // of the best placement that is known
  double limit_ = 0;              // peaks from here on are of no interest
  int64_t nodes_ = 0;             // steps that are left
  std::vector<int> hint_;         // [experts] where the search for numbers of replicas begins
  std::vector<int> least_after_;  // [experts + 1] slots that experts from i on need
  std::vector<RankKind> kinds_;
  std::vector<int> replicas_;  // [experts]
  std::vector<int> left_;      // [experts] replicas not placed yet
  std::vector<double> size_;   // [experts] of one replica
  std::vector<int> by_size_;   // experts by falling size
  double rest_ = 0;            // the load of the replicas not placed yet
  double found_ = 0;           // the peak of the ranks filled so far
  int empty_ = 0;              // ranks not begun yet
};

}  // namespace

double greedy_peak(const BoundedLayer& layer) {
  const std::vector<int> replicas = greedy_replicas(layer);
  const auto experts = static_cast<int>(layer.load.size());
  const auto size = [&](int e) { return layer.load[e] / replicas[e]; };
  std::vector<int> order(experts);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order,
                    [&](int a, int b) { return size(a) != size(b) ? size(a) > size(b) : a < b; });
  std::vector<double> load(layer.slots.size(), 0);
  std::vector<int> free(layer.slots);
  std::vector<int> last(layer.slots.size(), -1);  // the expert that came last to a rank
  for (const int e : order) {
    for (int copy = 0; copy < replicas[e]; ++copy) {
      size_t best = load.size();
      for (size_t r = 0; r < load.size(); ++r) {
        if (free[r] == 0 || last[r] == e) continue;
        if (best == load.size() || load[r] < load[best]) best = r;
      }
      if (best == load.size()) return kInfinity;
      load[best] += size(e);
      --free[best];
      last[best] = e;
    }
  }
  return std::ranges::max(load);
}

double small_bound(const BoundedLayer& layer, double low, double high, int64_t max_nodes) {
  PeakSearch search(layer, high);
  int64_t nodes = max_nodes / 2;
  if (search.search(kInfinity, nodes)) return std::max(low, search.peak() * (1 - 2 * kRounding));
  double above = std::min(search.peak(), 2 * low);
  for (int i = 0; i < kPeaks && low < above; ++i) {
    const double middle = 0.5 * (low + above);
    nodes = max_nodes / 2 / kPeaks;
    if (search.search(middle, nodes)) {
      low = std::max(low, std::min(middle, search.peak()) * (1 - 2 * kRounding));
    } else {
      above = middle;
    }
    above = std::min(above, search.peak());
  }
  return low;
}

}  // namespace trimtab
