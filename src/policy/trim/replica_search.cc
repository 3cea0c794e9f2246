// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/replica_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/portable_math.h"
#include "base/random.h"
#include "policy/trim/replicas.h"

namespace trimtab {
namespace {

struct Score {
  double peak = 0;
  double soft = 0;          // the soft peak, to which ranks just below the highest also add
  int32_t peak_expert = 0;  // the largest replica of the highest rank
};

// Packs replicas of given sizes onto ranks, quickly and well, but lets a rank get two replicas of
// one expert.
class Packer {
 public:
  explicit Packer(const LayerTask& task)
      : task_(task), order_(task.num_experts), size_(task.num_experts) {
    std::iota(order_.begin(), order_.end(), 0);
    pairs_ = task.full_total == 0;
    for (int r = 0; r < task.num_ranks(); ++r) pairs_ = pairs_ && task.slots.count(r) == 2;
    load_.resize(task.num_ranks());
    free_.resize(task.num_ranks());
    top_.resize(task.num_ranks());
  }

  // True when no placement with the same replicas has a lower peak, duplicates aside.
  bool is_optimal() const { return pairs_; }

  Score pack(const std::vector<int32_t>& replicas) {
    double all = 0;
    for (int32_t e = 0; e < task_.num_experts; ++e) {
      const double load = task_.episodes->of(e)[0];
      size_[e] = load / (replicas[e] + task_.full_total);
      all += size_[e];
    }
    sort_experts();
    items_.clear();
    for (const int32_t e : order_) items_.insert(items_.end(), replicas[e], e);
    pairs_ ? pack_pairs() : pack_lpt(all);
    return score();
  }

 private:
  static constexpr double kSharpness = 150;

  // After an exchange the order changes little, and insertion takes nearly linear time; after other
  // changes it may not.
  void sort_experts() {
    int64_t patience = 8 * std::ssize(order_);
    for (int64_t i = 1; i < std::ssize(order_); ++i) {
      const int32_t e = order_[i];
      int64_t j = i;
      for (; j > 0 && before(e, order_[j - 1]); --j) order_[j] = order_[j - 1];
      order_[j] = e;
      if (i - j > patience) {
        std::ranges::sort(order_, [this](int32_t a, int32_t b) { return before(a, b); });
        return;
      }
      patience -= i - j;
    }
  }

  bool before(int32_t a, int32_t b) const {
    const double left = size_[a];
    const double right = size_[b];
    return left != right ? left > right : a < b;
  }

  void pack_pairs() {
    const int64_t n = std::ssize(items_);
    for (int64_t r = 0; r < n / 2; ++r) {
      load_[r] = size_[items_[r]] + size_[items_[n - 1 - r]];
      top_[r] = items_[r];
    }
  }

  void pack_lpt(double all) {
    heap_.clear();
    for (int r = 0; r < task_.num_ranks(); ++r) {
      load_[r] = all * task_.full[r];
      free_[r] = task_.slots.count(r);
      top_[r] = -1;
      if (free_[r] > 0) heap_.push_back({load_[r], r});
    }
    std::make_heap(heap_.begin(), heap_.end(),
                   [](const Open& a, const Open& b) { return b.before(a); });
    for (const int32_t e : items_) {
      const int32_t r = heap_.front().rank;
      load_[r] += size_[e];
      if (top_[r] < 0) top_[r] = e;
      Open next = {load_[r], r};
      if (--free_[r] == 0) {
        next = heap_.back();
        heap_.pop_back();
      }
      replace_first(next);
    }
  }

  // Open is a rank with free slots.
  struct Open {
    double load;
    int32_t rank;
    bool before(const Open& other) const {
      return load != other.load ? load < other.load : rank < other.rank;
    }
  };

  // Takes the lightest rank from the heap and puts `next` in.
  void replace_first(const Open& next) {
    const int64_t size = std::ssize(heap_);
    int64_t hole = 0;
    for (int64_t child = 1; child < size; child = 2 * hole + 1) {
      if (child + 1 < size && heap_[child + 1].before(heap_[child])) ++child;
      if (!heap_[child].before(next)) break;
      heap_[hole] = heap_[child];
      hole = child;
    }
    if (hole < size) heap_[hole] = next;
  }

  Score score() const {
    const auto highest = std::max_element(load_.begin(), load_.end()) - load_.begin();
    Score result;
    result.peak = load_[highest];
    result.peak_expert = std::max(0, top_[highest]);
    float sum = 0;
    for (const double load : load_)
      sum += coarse_exp(static_cast<float>(kSharpness * (load - result.peak)));
    result.soft = result.peak + double{coarse_log(sum)} / kSharpness;
    return result;
  }

  const LayerTask& task_;
  bool pairs_;
  std::vector<int32_t> order_;  // experts by falling replica size
  std::vector<double> size_;    // [experts] of one replica
  std::vector<int32_t> items_;  // replicas by falling size
  std::vector<double> load_;    // [ranks]
  std::vector<int32_t> free_, top_;
  std::vector<Open> heap_;
};

class ReplicaSearch {
 public:
  ReplicaSearch(const LayerTask& task, const ReplicaSearchEffort& effort, uint64_t seed)
      : task_(task),
        effort_(effort),
        packer_(task),
        random_(seed),
        demand_(expert_demand(*task.episodes, 0)),
        most_(task.max_replicas()) {
    replicas_ = choose_replicas(task, demand_);
    score_ = packer_.pack(replicas_);
    for (int32_t e = 0; e < task.num_experts; ++e) {
      least_theta_ = std::max(least_theta_, share_of(demand_[e], replicas_[e] + task.full_total));
    }
  }

  std::vector<int32_t> run() {
    try_families(true);
    keep_best();
    if (good_enough()) return best_;
    if (effort_.all_families) {
      try_families(false);
      keep_best();
    }
    // The best is shown again after this many exchanges, and then after twice as many each time.
    constexpr int kFirst = 100;
    const int iterations = (packer_.is_optimal() ? 2 : 1) * effort_.iterations;
    for (int i = 0, show = kFirst; i < iterations && best_score_.peak > effort_.target; ++i) {
      if (i == show) {
        if (good_enough()) break;
        show *= 2;
      }
      try_exchange();
    }
    return best_;
  }

 private:
  // Asks only about what is new.
  bool good_enough() {
    if (best_score_.peak <= effort_.target) return true;
    if (!effort_.good_enough || packer_.is_optimal() || best_ == asked_) return false;
    asked_ = best_;
    return effort_.good_enough(best_);
  }

  void keep_best() {
    best_ = replicas_;
    best_score_ = score_;
  }

  void take_if_better(std::vector<int32_t> replicas) {
    const Score score = packer_.pack(replicas);
    if (score.soft >= score_.soft) return;
    replicas_ = std::move(replicas);
    score_ = score;
  }

  // Tries a coarse grid of the families, or those that it leaves out.
  void try_families(bool coarse) {
    constexpr int kThetas = 12, kCoarseThetas = 3;
    constexpr int kPhis = 8, kCoarsePhis = 2;
    for (int t = 0; t < kThetas; ++t) {
      if (coarse && t % kCoarseThetas != 0) continue;
      const float theta = least_theta_ * (1.0F + 0.08F * static_cast<float>(t));
      std::vector<int32_t> fewest;
      if (!fewest_replicas(theta, fewest)) continue;
      for (int p = 1; p <= kPhis; ++p) {
        if ((t % kCoarseThetas == 0 && p % kCoarsePhis == 0) != coarse) continue;
        std::vector<int32_t> replicas = fewest;
        const float phi = theta * static_cast<float>(p) / kPhis;
        if (spend_slots(task_, demand_, phi, replicas)) take_if_better(std::move(replicas));
      }
    }
  }

  bool fewest_replicas(float theta, std::vector<int32_t>& replicas) const {
    int64_t total = 0;
    for (const float demand : demand_) {
      const auto needed = static_cast<int32_t>(std::ceil(demand / theta * (1.0F - 1e-6F)));
      replicas.push_back(std::clamp(needed - task_.full_total, task_.min_replicas(), most_));
      total += replicas.back();
    }
    return total <= task_.num_slots();
  }

  void try_exchange() {
    const uint32_t num_experts = task_.num_experts;
    const uint32_t gainer = random_.below(2) == 0 ? score_.peak_expert : random_.below(num_experts);
    const uint32_t loser = random_.below(num_experts);
    if (gainer == loser || replicas_[gainer] >= most_ || replicas_[loser] <= task_.min_replicas())
      return;
    ++replicas_[gainer];
    --replicas_[loser];
    const Score score = packer_.pack(replicas_);
    // A slightly worse score is accepted too, since many replicas give the same peak.
    const double limit = score_.soft - kTemperature * coarse_log(random_.unit());
    if (score.soft > limit) {
      --replicas_[gainer];
      ++replicas_[loser];
      return;
    }
    score_ = score;
    if (score.peak < best_score_.peak) keep_best();
  }

  static constexpr double kTemperature = 2e-4;

  const LayerTask& task_;
  const ReplicaSearchEffort effort_;
  Packer packer_;
  Random random_;
  std::vector<float> demand_;
  const int32_t most_;  // replicas an expert may have
  // The largest replica when they are chosen greedily; no other numbers of replicas make it
  // smaller.
  float least_theta_ = 0;
  std::vector<int32_t> replicas_, best_, asked_;
  Score score_, best_score_;
};

}  // namespace

std::vector<int32_t> search_replicas(const LayerTask& task, const ReplicaSearchEffort& effort,
                                     uint64_t seed) {
  return ReplicaSearch(task, effort, seed).run();
}

}  // namespace trimtab
