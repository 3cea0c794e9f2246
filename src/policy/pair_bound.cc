// SPDX-License-Identifier: Apache-2.0
#include "policy/pair_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trimtab {
namespace {

constexpr int kMaxThresholds = 96;
constexpr int kRounds = 80;           // steps of the subgradient method for one peak
constexpr double kFirstStep = 0.02;   // peaks tried are this much above the last proved one ...
constexpr double kLastStep = 0.0006;  // ... and at least this much
constexpr double kBelow = 1 - 1e-12;  // sizes are rounded in favour of a placement
constexpr double kAim = 2;            // how far above 0 a step aims, in replicas

class PairBound {
 public:
  explicit PairBound(const BoundedLayer& layer)
      : load_(layer.load),
        num_slots_(static_cast<double>(layer.num_slots)),
        num_ranks_(layer.num_ranks()),
        single_(static_cast<double>(std::ranges::count(layer.slots, 1))) {}

  // Whether a peak of B was proved impossible.
  bool impossible(double peak) {
    if (!find_least(peak)) return true;
    find_thresholds(peak);
    find_choices(peak);
    if (std::ssize(f_) != num_thresholds() + 1) start();
    for (int round = 0; round < kRounds; ++round) {
      const double value = evaluate();
      // A value far above what rounding can do.
      if (value > 1e-9 * num_slots_ * (1 + std::abs(price_))) return true;
      if (!ascend(value)) return false;
    }
    return false;
  }

 private:
  // An expert may have this many replicas. `zone` says where their size lies: i > 0 for a size
  // above i thresholds, -i for one of at most B - t for i thresholds.
  struct Choice {
    double replicas = 1;
    int zone = 0;
  };

  int num_thresholds() const { return static_cast<int>(std::ssize(small_)); }

  // The fewest replicas of each expert, and how many slots are left then. False: too few slots.
  bool find_least(double peak) {
    least_.clear();
    double all = 0;
    for (const double w : load_) {
      least_.push_back(std::max(1.0, std::ceil(w / peak * kBelow)));
      all += least_.back();
    }
    spare_ = num_slots_ - all;
    return spare_ >= 0 && least_.front() <= static_cast<double>(num_ranks_);
  }

  double most(size_t expert) const {
    return std::min(static_cast<double>(num_ranks_), least_[expert] + spare_);
  }

  // Thresholds just below replicas that are larger than B / 2: there the condition is strongest.
  // small_ has B - t, descending.
  void find_thresholds(double peak) {
    large_.clear();
    for (size_t e = 0; e < load_.size(); ++e) {
      for (double c = least_[e]; c <= std::min(least_[e] + 1, most(e)); ++c) {
        const double size = load_[e] / c * kBelow;
        if (size > peak / 2) large_.push_back(size);
      }
    }
    std::ranges::sort(large_);
    small_.clear();
    const auto count = std::ssize(large_);
    const auto wanted = std::min<int64_t>(kMaxThresholds, count);
    for (int64_t i = 0; i < wanted; ++i) {
      // A hair above B - size, so that the size is above the threshold after rounding.
      const double small = std::min(peak / 2, (peak - large_[i * count / wanted]) + 1e-11 * peak);
      if (small_.empty() || small < small_.back()) small_.push_back(small);
    }
    if (small_.empty()) small_.push_back(peak / 2);
  }

  int zone_of(double size, double peak) const {
    const auto before = [&](auto&& is_above) {
      return static_cast<int>(std::ranges::partition_point(small_, is_above) - small_.begin());
    };
    if (size > peak / 2) return before([&](double small) { return small > peak - size; });
    return -before([&](double small) { return small >= size; });
  }

  // Within a zone the value of an expert is linear in its replicas, so only the ends matter.
  void find_choices(double peak) {
    choices_.clear();
    first_.clear();
    for (size_t e = 0; e < load_.size(); ++e) {
      first_.push_back(static_cast<int>(choices_.size()));
      int in_zone = 0;
      for (double c = least_[e]; c <= most(e); ++c) {
        const int zone = zone_of(load_[e] / c * kBelow, peak);
        in_zone = c > least_[e] && choices_.back().zone == zone ? in_zone + 1 : 1;
        if (in_zone > 2) choices_.pop_back();
        choices_.push_back({.replicas = c, .zone = zone});
        if (zone == -num_thresholds() && c < most(e)) {  // the last zone
          choices_.push_back({.replicas = most(e), .zone = zone});
          break;
        }
      }
    }
    first_.push_back(static_cast<int>(choices_.size()));
  }

  void start() {
    const int count = num_thresholds();
    f_.resize(count + 1);
    for (int i = 0; i <= count; ++i) f_[i] = static_cast<double>(i) / count;
    price_ = 0.5;
  }

  // The value of the proof at f_ and price_, positive where the peak is impossible. Leaves its
  // subgradient in slope_ and price_slope_.
  double evaluate() {
    const int count = num_thresholds();
    worth_.resize(2 * count + 1);
    replicas_in_.assign(2 * count + 1, 0);
    for (int i = 0; i <= count; ++i) {
      worth_[count + i] = price_ + f_[i];
      worth_[count - i] = price_ - f_[i];
    }
    double value = -num_slots_ * price_ - single_ * f_[count];
    price_slope_ = -num_slots_;
    for (size_t e = 0; e + 1 < first_.size(); ++e) {
      double least = std::numeric_limits<double>::infinity();
      const Choice* best = nullptr;
      for (int i = first_[e]; i < first_[e + 1]; ++i) {
        const Choice& choice = choices_[i];
        const double own = choice.replicas * worth_[count + choice.zone];
        if (own < least) {
          least = own;
          best = &choice;
        }
      }
      value += least;
      price_slope_ += best->replicas;
      replicas_in_[count + best->zone] += best->replicas;
    }
    slope_.resize(count + 1);
    for (int i = 1; i <= count; ++i) slope_[i] = replicas_in_[count + i] - replicas_in_[count - i];
    slope_[count] -= single_;
    return value;
  }

  // A step up the subgradient; then f is made monotone again and scaled to 1 at its end. False
  // where there is nowhere to go.
  bool ascend(double value) {
    const int count = num_thresholds();
    double norm = price_slope_ * price_slope_;
    for (int i = 1; i <= count; ++i) norm += slope_[i] * slope_[i];
    if (norm <= 0) return false;
    const double step = (kAim - value) / norm;
    price_ += step * price_slope_;
    pools_.clear();
    for (int i = 1; i <= count; ++i) {
      Pool pool{.value = f_[i] + step * slope_[i], .width = 1};
      while (!pools_.empty() && pools_.back().value >= pool.value) {
        const Pool& before = pools_.back();
        const int width = pool.width + before.width;
        pool = {.value = (pool.value * pool.width + before.value * before.width) / width,
                .width = width};
        pools_.pop_back();
      }
      pools_.push_back(pool);
    }
    int at = 1;
    for (const Pool& pool : pools_) {
      for (int i = 0; i < pool.width; ++i) f_[at++] = std::max(0.0, pool.value);
    }
    const double scale = f_[count];
    if (!(scale > 1e-9)) {
      start();
      return true;
    }
    for (double& value_of_zone : f_) value_of_zone /= scale;
    price_ /= scale;
    return true;
  }

  struct Pool {
    double value = 0;
    int width = 0;
  };

  const std::vector<double>& load_;
  double num_slots_;
  int64_t num_ranks_;
  double single_;                // ranks of one slot
  std::vector<double> least_;    // [experts] replicas that the peak needs
  double spare_ = 0;             // slots beyond these
  std::vector<double> large_;    // sizes above B / 2, ascending
  std::vector<double> small_;    // [thresholds] B - t, descending
  std::vector<Choice> choices_;  // of all experts, one after the other
  std::vector<int> first_;       // [experts + 1] in choices_
  std::vector<double> f_;        // [thresholds + 1] of a size above i thresholds, from 0 to 1
  double price_ = 0.5;           // of a slot
  std::vector<double> worth_, replicas_in_;  // [2 * thresholds + 1] by zone
  std::vector<double> slope_;                // [thresholds + 1]
  double price_slope_ = 0;
  std::vector<Pool> pools_;
};

}  // namespace

double pair_bound(const BoundedLayer& layer, double low, double high) {
  PairBound pairs(layer);
  // What was found for one peak is where the search begins for the next.
  for (double step = kFirstStep; step >= kLastStep;) {
    const double peak = low * (1 + step);
    if (peak < high && pairs.impossible(peak)) {
      low = peak;
    } else {
      step /= 2;
    }
  }
  return low;
}

}  // namespace trimtab
