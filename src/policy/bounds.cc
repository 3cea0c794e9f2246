// SPDX-License-Identifier: Apache-2.0
#include "policy/bounds.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace trimtab {
namespace {

// Whether slots for ceil(w / peak) replicas of every expert exist. Replicas beyond one a rank share
// that rank's peak.
bool replicas_fit(std::span<const int64_t> expert_load, double peak, int64_t num_slots,
                  int64_t num_ranks) {
  int64_t needed = 0;
  for (const int64_t w : expert_load) {
    const double replicas = std::max(1.0, std::ceil(static_cast<double>(w) / peak * (1 - 1e-12)));
    if (replicas > static_cast<double>(num_ranks)) return false;
    needed += static_cast<int64_t>(replicas);
    if (needed > num_slots) return false;
  }
  return true;
}

// Ranks of two slots: is a peak of B impossible?
class PairBound {
 public:
  PairBound(std::span<const int64_t> expert_load, int64_t num_ranks)
      : load_(expert_load.begin(), expert_load.end()), most_(static_cast<double>(num_ranks)) {
    std::ranges::sort(load_);
    kinds_.reserve(load_.size());
  }

  bool impossible(double peak) {
    // The threshold that has proved it for another peak goes first.
    for (int i = 0; i < kThresholds; ++i) {
      const int threshold = i == 0 ? proved_ : i - (i <= proved_ ? 1 : 0);
      // t from B / 2 up; B - t must leave room for something.
      const double large = peak * (0.5 + 0.45 * threshold / kThresholds);
      find_kinds(peak, large, peak - large);
      if (!balance_impossible()) continue;
      proved_ = threshold;
      return true;
    }
    return false;
  }

 private:
  // By its number of replicas, an expert's replicas are larger than `large`, in the middle, or at
  // most `small`.
  struct Zones {
    double least = 1;   // replicas that B needs
    double middle = 1;  // from here on not larger than `large`
    double small = 1;   // from here on small
    bool operator==(const Zones&) const = default;
  };
  // Experts with the same zones; sorted by load, they stand side by side.
  struct Kind {
    Zones zones;
    double experts = 0;
  };

  void find_kinds(double peak, double large, double small) {
    constexpr double kSlack = 1 - 1e-12;
    kinds_.clear();
    const double by_peak = kSlack / peak, by_large = kSlack / large, by_small = kSlack / small;
    for (const double w : load_) {
      const double least = std::max(1.0, std::ceil(w * by_peak));
      const Zones zones = {.least = least,
                           .middle = std::clamp(std::ceil(w * by_large), least, most_ + 1),
                           .small = std::clamp(std::ceil(w * by_small), least, most_ + 1)};
      if (kinds_.empty() || kinds_.back().zones != zones) kinds_.push_back({zones, 0});
      ++kinds_.back().experts;
    }
  }

  // Whether no numbers of replicas that fill the slots have as many small replicas as large ones.
  // For any price of a slot, the sum of what each expert alone does best is at least the best of
  // all together; it is convex in the price, with the slots that are left over as slope, so the
  // price that proves the most is found by bisection.
  bool balance_impossible() const {
    constexpr int kSteps = 14;
    double low = -2;
    double high = 2;
    for (int i = 0; i < kSteps; ++i) {
      const double price = 0.5 * (low + high);
      double value = price * 2 * most_;
      double slope = 2 * most_;
      for (const Kind& kind : kinds_) {
        const Choice choice = best_of(kind.zones, price);
        value += kind.experts * choice.value;
        slope -= kind.experts * choice.replicas;
      }
      if (value < -1e-6) return true;
      // Convex: nowhere between the ends is it below what its slope here promises.
      const double reach = slope < 0 ? high - price : low - price;
      if (value + slope * reach >= 0) return false;
      (slope < 0 ? low : high) = price;
    }
    return false;
  }

  struct Choice {
    double value = -1e300;
    double replicas = 0;
  };

  // Every replica counts -1 in the first zone, +1 in the last, and costs the price: linear, so only
  // the zones' ends matter.
  Choice best_of(const Zones& zones, double price) const {
    Choice best;
    const auto zone = [&](double from, double to, double worth) {
      if (from > to) return;
      const double replicas = worth > price ? to : from;
      if ((worth - price) * replicas > best.value)
        best = {.value = (worth - price) * replicas, .replicas = replicas};
    };
    zone(zones.least, zones.middle - 1, -1);
    zone(zones.middle, std::min(zones.small - 1, most_), 0);
    zone(zones.small, most_, 1);
    return best;
  }

  static constexpr int kThresholds = 20;

  std::vector<double> load_;  // ascending
  double most_;               // replicas of an expert: one a rank
  int proved_ = 0;            // the threshold that last proved a peak impossible
  std::vector<Kind> kinds_;
};

double with_pairs(std::span<const int64_t> expert_load, std::span<const int32_t> first_slots,
                  double bound) {
  if (expert_load.size() < 2) return bound;  // ranks must hold the one expert twice
  for (size_t r = 0; r + 1 < first_slots.size(); ++r) {
    if (first_slots[r + 1] - first_slots[r] != 2) return bound;
  }
  PairBound pairs(expert_load, std::ssize(first_slots) - 1);
  double low = bound;
  double high = 2 * bound;
  constexpr int kSteps = 11;
  for (int i = 0; i < kSteps; ++i) {
    const double middle = 0.5 * (low + high);
    (pairs.impossible(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

PeakBounds peak_bounds(std::span<const int64_t> expert_load, std::span<const int32_t> first_slots) {
  double total = 0;
  double largest = 0;
  for (const int64_t w : expert_load) {
    total += static_cast<double>(w);
    largest = std::max(largest, static_cast<double>(w));
  }
  if (total <= 0) return {};
  int64_t num_ranks = 0;  // that can hold anything
  for (size_t r = 0; r + 1 < first_slots.size(); ++r)
    num_ranks += first_slots[r + 1] > first_slots[r] ? 1 : 0;
  double low = total / static_cast<double>(num_ranks);
  double high = std::max(low, largest);
  if (!replicas_fit(expert_load, low, first_slots.back(), num_ranks)) {
    // `low` never fits, so it is a bound at every step.
    for (int i = 0; i < 60 && high - low > 1e-9 * high; ++i) {
      const double middle = 0.5 * (low + high);
      (replicas_fit(expert_load, middle, first_slots.back(), num_ranks) ? high : low) = middle;
    }
  }
  return {.equal = with_pairs(expert_load, first_slots, low), .exact = low};
}

}  // namespace trimtab
