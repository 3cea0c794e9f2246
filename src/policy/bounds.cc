// SPDX-License-Identifier: Apache-2.0
#include "policy/bounds.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "policy/pair_bound.h"
#include "policy/small_bound.h"

namespace trimtab {
namespace {

// Layers of this size are searched, for at most so many steps of some nanoseconds.
constexpr int kSearchedExperts = 24;
constexpr int kSearchedSlots = 64;
constexpr int64_t kSearchNodes = 100'000;
// A bound this close to a peak that is reached is good enough.
constexpr double kClose = 1.0005;

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

// The experts and ranks without their names. std::nullopt where a rank must hold an expert twice:
// there the searches do not apply.
std::optional<BoundedLayer> bounded_layer(std::span<const int64_t> expert_load,
                                          std::span<const int32_t> first_slots) {
  BoundedLayer layer;
  layer.num_slots = first_slots.back();
  for (size_t r = 0; r + 1 < first_slots.size(); ++r) {
    const int slots = first_slots[r + 1] - first_slots[r];
    if (slots > std::ssize(expert_load)) return std::nullopt;
    if (slots > 0) layer.slots.push_back(slots);
  }
  std::ranges::sort(layer.slots, std::greater());
  layer.load.assign(expert_load.begin(), expert_load.end());
  std::ranges::sort(layer.load, std::greater());
  return layer;
}

// `low` raised by what holds without duplicates and with equal shares.
double without_duplicates(std::span<const int64_t> expert_load,
                          std::span<const int32_t> first_slots, double low) {
  const bool is_small =
      std::ssize(expert_load) <= kSearchedExperts && first_slots.back() <= kSearchedSlots;
  bool pairs = false;
  bool only_pairs = true;
  for (size_t r = 0; r + 1 < first_slots.size(); ++r) {
    pairs = pairs || first_slots[r + 1] - first_slots[r] == 2;
    only_pairs = only_pairs && first_slots[r + 1] - first_slots[r] <= 2;
  }
  if (!is_small && !(pairs && only_pairs)) return low;
  const std::optional<BoundedLayer> layer = bounded_layer(expert_load, first_slots);
  if (!layer) return low;
  const double high = greedy_peak(*layer);
  if (high <= low * kClose) return low;
  if (pairs && only_pairs) low = pair_bound(*layer, low, high);
  if (is_small && high > low * kClose) low = small_bound(*layer, low, high, kSearchNodes);
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
  return {.equal = without_duplicates(expert_load, first_slots, low), .exact = low};
}

}  // namespace trimtab
