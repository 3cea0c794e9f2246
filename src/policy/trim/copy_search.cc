// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/copy_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/portable_math.h"
#include "base/random.h"
#include "policy/trim/copies.h"

namespace trimtab {
namespace {

struct Score {
  double peak = 0;
  double soft = 0;          // soft peak: also feels the ranks just below the highest
  int32_t peak_expert = 0;  // the largest replica of the highest rank
};

// Packs replicas of given sizes onto ranks, quickly and well but without looking at duplicates.
class Packer {
 public:
  explicit Packer(const LayerTask& task)
      : task_(task), order_(task.num_experts), size_(task.num_experts) {
    std::iota(order_.begin(), order_.end(), 0);
    pairs_ = task.full_total == 0;
    for (int r = 0; r < task.num_ranks; ++r) pairs_ = pairs_ && task.slots_of(r) == 2;
    load_.resize(task.num_ranks);
    free_.resize(task.num_ranks);
    top_.resize(task.num_ranks);
  }

  // Whether no map with the same copies has a lower peak, duplicates aside.
  bool is_exact() const { return pairs_; }

  Score pack(const std::vector<int32_t>& copies) {
    double all = 0;
    for (size_t e = 0; e < size_.size(); ++e) {
      const int32_t total = copies[e] + task_.full_total;
      size_[e] = static_cast<double>(task_.episodes->of(static_cast<int>(e))[0]) / total;
      all += size_[e];
    }
    sort_experts();
    items_.clear();
    for (const int32_t e : order_) items_.insert(items_.end(), copies[e], e);
    pairs_ ? pack_pairs() : pack_lpt(all);
    return score();
  }

 private:
  static constexpr double kSharpness = 150;

  // After an exchange the order changes little, and insertion takes nearly linear time; after other
  // changes it may not.
  void sort_experts() {
    size_t patience = 8 * order_.size();
    for (size_t i = 1; i < order_.size(); ++i) {
      const int32_t e = order_[i];
      size_t j = i;
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
    const size_t n = items_.size();
    for (size_t r = 0; r < n / 2; ++r) {
      load_[r] = size_[items_[r]] + size_[items_[n - 1 - r]];
      top_[r] = items_[r];
    }
  }

  void pack_lpt(double all) {
    heap_.clear();
    for (int r = 0; r < task_.num_ranks; ++r) {
      const auto i = static_cast<size_t>(r);
      load_[i] = all * task_.full[i];
      free_[i] = task_.slots_of(r);
      top_[i] = -1;
      if (free_[i] > 0) heap_.push_back({load_[i], r});
    }
    std::make_heap(heap_.begin(), heap_.end(),
                   [](const Open& a, const Open& b) { return b.before(a); });
    for (const int32_t e : items_) {
      const auto r = static_cast<size_t>(heap_.front().rank);
      load_[r] += size_[e];
      if (top_[r] < 0) top_[r] = e;
      Open next = {load_[r], heap_.front().rank};
      if (--free_[r] == 0) {
        next = heap_.back();
        heap_.pop_back();
      }
      replace_first(next);
    }
  }

  // A rank with free slots.
  struct Open {
    double load;
    int32_t rank;
    bool before(const Open& other) const {
      return load != other.load ? load < other.load : rank < other.rank;
    }
  };

  // The lightest makes way for another one, which sinks to its place.
  void replace_first(const Open& next) {
    const size_t size = heap_.size();
    size_t hole = 0;
    for (size_t child = 1; child < size; child = 2 * hole + 1) {
      if (child + 1 < size && heap_[child + 1].before(heap_[child])) ++child;
      if (!heap_[child].before(next)) break;
      heap_[hole] = heap_[child];
      hole = child;
    }
    if (hole < size) heap_[hole] = next;
  }

  Score score() const {
    const size_t highest =
        static_cast<size_t>(std::max_element(load_.begin(), load_.end()) - load_.begin());
    Score result;
    result.peak = load_[highest];
    result.peak_expert = std::max(0, top_[highest]);
    float sum = 0;
    for (const double load : load_)
      sum += coarse_exp(static_cast<float>(kSharpness * (load - result.peak)));
    result.soft = result.peak + static_cast<double>(coarse_log(sum)) / kSharpness;
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

class CopySearch {
 public:
  CopySearch(const LayerTask& task, const CopySearchEffort& effort, uint64_t seed)
      : task_(task),
        effort_(effort),
        packer_(task),
        random_(seed),
        demand_(expert_demand(*task.episodes, 0)),
        most_(task.max_copies()) {
    copies_ = choose_copies(task, demand_);
    score_ = packer_.pack(copies_);
    for (size_t e = 0; e < copies_.size(); ++e) {
      least_theta_ =
          std::max(least_theta_, demand_[e] / static_cast<float>(copies_[e] + task_.full_total));
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
    constexpr int kFirst =
        100;  // exchanges before the best is shown again; then twice as many each time
    const int iterations =
        (packer_.is_exact() ? 2 : 1) * effort_.iterations;  // pairs are packed sooner
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
    if (!effort_.good_enough || packer_.is_exact() || best_ == asked_) return false;
    asked_ = best_;
    return effort_.good_enough(best_);
  }

  void keep_best() {
    best_ = copies_;
    best_score_ = score_;
  }

  void take_if_better(std::vector<int32_t> copies) {
    const Score score = packer_.pack(copies);
    if (score.soft >= score_.soft) return;
    copies_ = std::move(copies);
    score_ = score;
  }

  // A coarse grid of them, or the others.
  void try_families(bool coarse) {
    constexpr int kThetas = 12, kCoarseThetas = 3;
    constexpr int kPhis = 8, kCoarsePhis = 2;
    for (int t = 0; t < kThetas; ++t) {
      if (coarse && t % kCoarseThetas != 0) continue;
      const float theta = least_theta_ * (1.0F + 0.08F * static_cast<float>(t));
      std::vector<int32_t> fewest;
      if (!fewest_copies(theta, fewest)) continue;
      for (int p = 1; p <= kPhis; ++p) {
        if ((t % kCoarseThetas == 0 && p % kCoarsePhis == 0) != coarse) continue;
        std::vector<int32_t> copies = fewest;
        const float phi = theta * static_cast<float>(p) / kPhis;
        if (spend_slots(task_, demand_, phi, copies)) take_if_better(std::move(copies));
      }
    }
  }

  bool fewest_copies(float theta, std::vector<int32_t>& copies) const {
    int64_t total = 0;
    for (const float demand : demand_) {
      const auto needed = static_cast<int32_t>(std::ceil(demand / theta * (1.0F - 1e-6F)));
      copies.push_back(std::clamp(needed - task_.full_total, task_.min_copies(), most_));
      total += copies.back();
    }
    return total <= task_.num_slots();
  }

  void try_exchange() {
    const auto num_experts = static_cast<uint32_t>(copies_.size());
    const auto gainer =
        static_cast<size_t>(random_.below(2) == 0 ? static_cast<uint32_t>(score_.peak_expert)
                                                  : random_.below(num_experts));
    const auto loser = static_cast<size_t>(random_.below(num_experts));
    if (gainer == loser || copies_[gainer] >= most_ || copies_[loser] <= task_.min_copies()) return;
    ++copies_[gainer];
    --copies_[loser];
    const Score score = packer_.pack(copies_);
    // A little uphill is accepted: plateaus are many.
    const double limit =
        score_.soft - kTemperature * static_cast<double>(coarse_log(random_.unit()));
    if (score.soft > limit) {
      --copies_[gainer];
      ++copies_[loser];
      return;
    }
    score_ = score;
    if (score.peak < best_score_.peak) keep_best();
  }

  static constexpr double kTemperature = 2e-4;

  const LayerTask& task_;
  const CopySearchEffort effort_;
  Packer packer_;
  Random random_;
  std::vector<float> demand_;
  const int32_t most_;  // copies an expert may have
  float least_theta_ =
      0;  // the largest replica of the copies chosen first: none is smaller whatever the copies
  std::vector<int32_t> copies_, best_, asked_;
  Score score_, best_score_;
};

}  // namespace

std::vector<int32_t> search_copies(const LayerTask& task, const CopySearchEffort& effort,
                                   uint64_t seed) {
  return CopySearch(task, effort, seed).run();
}

}  // namespace trimtab
