// SPDX-License-Identifier: Apache-2.0
#include "policy/flashlb/flash_pack.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "load/rank_loads.h"

namespace trimtab {

FlashPack::FlashPack(const EpisodeStats& stats, std::span<const int32_t> first_slots, double z)
    : stats_(stats),
      first_slots_(first_slots.begin(), first_slots.end()),
      z_(z),
      map_(first_slots.back()),
      used_(first_slots.size() - 1),
      held_((first_slots.size() - 1) * static_cast<size_t>(stats.num_experts)),
      rank_mean_(first_slots.size() - 1),
      rank_variance_(first_slots.size() - 1),
      rank_load_(stats.num_episodes),
      peak_(stats.num_episodes) {
  for (int e = 0; e < stats.num_experts; ++e) {
    const auto i = static_cast<size_t>(e);
    risk_.push_back(stats.mean[i] + z * std::sqrt(stats.variance(e)));
    double sum = 0;
    for (size_t k = 0; k < peak_.size(); ++k)
      sum += stats.load[i * peak_.size() + k] * num_ranks() / stats.total[k];
    mean_par_.push_back(peak_.empty() ? 0.0 : sum / static_cast<double>(peak_.size()));
  }
}

size_t FlashPack::free_slots(size_t rank) const {
  return static_cast<size_t>(first_slots_[rank + 1] - first_slots_[rank]) - used_[rank];
}

bool FlashPack::holds(size_t rank, size_t expert) const {
  return held_[rank * static_cast<size_t>(num_experts()) + expert] != 0;
}

void FlashPack::put(size_t rank, size_t expert) {
  map_[static_cast<size_t>(first_slots_[rank]) + used_[rank]++] = static_cast<int32_t>(expert);
  held_[rank * static_cast<size_t>(num_experts()) + expert] = 1;
}

// Covariance of an expert's load with the load already on a rank.
double FlashPack::covariance_with(size_t rank, size_t expert,
                                  std::span<const int32_t> copies) const {
  double sum = 0;
  const double* row = stats_.covariance.data() + expert * static_cast<size_t>(num_experts());
  const auto first = static_cast<size_t>(first_slots_[rank]);
  for (size_t s = first; s < first + used_[rank]; ++s) {
    const auto other = static_cast<size_t>(map_[s]);
    sum += row[other] / copies[other];
  }
  return sum;
}

// The ranks that can take the expert, lowest risk with it first, lower rank first among equals.
void FlashPack::rank_candidates(size_t expert, std::span<const int32_t> copies) {
  candidates_.clear();
  const double share = 1.0 / copies[expert];
  const double own_variance = stats_.variance(static_cast<int>(expert)) * share * share;
  for (size_t r = 0; r < used_.size(); ++r) {
    if (free_slots(r) == 0 || holds(r, expert)) continue;
    double variance = 0;
    if (!stats_.covariance.empty()) {
      // Rounding can leave a variance that should be 0 just below it.
      variance = std::max(
          0.0, rank_variance_[r] + own_variance + 2 * share * covariance_with(r, expert, copies));
    }
    const double mean = rank_mean_[r] + stats_.mean[expert] * share;
    candidates_.push_back({mean + z_ * std::sqrt(variance), variance, r});
  }
  const size_t wanted = std::min(candidates_.size(), static_cast<size_t>(copies[expert]));
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(wanted),
                    candidates_.end(), [](const Candidate& a, const Candidate& b) {
                      return a.risk < b.risk || (a.risk == b.risk && a.rank < b.rank);
                    });
  candidates_.resize(wanted);
}

// Mean and variance of a rank from scratch.
void FlashPack::reckon(size_t rank, std::span<const int32_t> copies) {
  rank_mean_[rank] = 0;
  double variance = 0;
  const auto first = static_cast<size_t>(first_slots_[rank]);
  for (size_t s = first; s < first + used_[rank]; ++s) {
    const auto e = static_cast<size_t>(map_[s]);
    rank_mean_[rank] += stats_.mean[e] / copies[e];
    if (!stats_.covariance.empty()) variance += covariance_with(rank, e, copies) / copies[e];
  }
  rank_variance_[rank] = std::max(0.0, variance);
}

// Every rank with a free slot holds the expert: another rank passes one of its experts on to such a
// rank and takes it.
bool FlashPack::make_room(size_t expert, std::span<const int32_t> copies) {
  for (size_t full = 0; full < used_.size(); ++full) {
    if (holds(full, expert)) continue;
    const auto first = static_cast<size_t>(first_slots_[full]);
    for (size_t s = first; s < first + used_[full]; ++s) {
      const auto passed = static_cast<size_t>(map_[s]);
      for (size_t r = 0; r < used_.size(); ++r) {
        if (free_slots(r) == 0 || holds(r, passed)) continue;
        put(r, passed);
        held_[full * static_cast<size_t>(num_experts()) + passed] = 0;
        held_[full * static_cast<size_t>(num_experts()) + expert] = 1;
        map_[s] = static_cast<int32_t>(expert);
        reckon(full, copies);
        reckon(r, copies);
        return true;
      }
    }
  }
  return false;
}

// Slots that no copy could take without being a second one on its rank go to the riskiest share
// that the rank lacks.
void FlashPack::fill_rest() {
  const auto experts = static_cast<size_t>(num_experts());
  std::vector<int32_t> placed(experts, 0);
  for (size_t r = 0; r < used_.size(); ++r) {
    for (size_t s = 0; s < used_[r]; ++s)
      ++placed[static_cast<size_t>(map_[static_cast<size_t>(first_slots_[r]) + s])];
  }
  for (size_t r = 0; r < used_.size(); ++r) {
    while (free_slots(r) > 0) {
      size_t best = 0;
      for (size_t e = 1; e < experts; ++e) {
        const bool lacks = !holds(r, e) && holds(r, best);
        const bool same = holds(r, e) == holds(r, best);
        if (lacks || (same && risk_[e] / placed[e] > risk_[best] / placed[best])) best = e;
      }
      put(r, best);
      ++placed[best];
    }
  }
}

std::vector<int32_t> FlashPack::pack(std::span<const int32_t> copies) {
  std::fill(used_.begin(), used_.end(), size_t{0});
  std::fill(held_.begin(), held_.end(), uint8_t{0});
  std::fill(rank_mean_.begin(), rank_mean_.end(), 0.0);
  std::fill(rank_variance_.begin(), rank_variance_.end(), 0.0);
  std::vector<size_t> order(num_experts());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return stats_.mean[a] / copies[a] > stats_.mean[b] / copies[b];
  });
  for (const size_t e : order) {
    rank_candidates(e, copies);
    for (const Candidate& c : candidates_) {
      put(c.rank, e);
      rank_mean_[c.rank] += stats_.mean[e] / copies[e];
      rank_variance_[c.rank] = c.variance;
    }
    for (auto left = candidates_.size();
         left < static_cast<size_t>(copies[e]) && make_room(e, copies); ++left) {
    }
  }
  fill_rest();
  return map_;
}

double FlashPack::score(std::span<const int32_t> map) {
  if (peak_.empty()) return 1.0;
  const std::vector<int32_t> copies = replica_counts(map, num_experts());
  std::fill(peak_.begin(), peak_.end(), 0.0);
  for (size_t r = 0; r < used_.size(); ++r) {
    std::fill(rank_load_.begin(), rank_load_.end(), 0.0);
    for (auto s = static_cast<size_t>(first_slots_[r]);
         s < static_cast<size_t>(first_slots_[r + 1]); ++s) {
      const auto e = static_cast<size_t>(map[s]);
      const double share = 1.0 / copies[e];
      const double* load = stats_.load.data() + e * peak_.size();
      for (size_t k = 0; k < peak_.size(); ++k) rank_load_[k] += load[k] * share;
    }
    for (size_t k = 0; k < peak_.size(); ++k) peak_[k] = std::max(peak_[k], rank_load_[k]);
  }
  double sum = 0;
  for (size_t k = 0; k < peak_.size(); ++k) sum += peak_[k] * num_ranks() / stats_.total[k];
  return sum / static_cast<double>(peak_.size());
}

double FlashPack::score_bound(std::span<const int32_t> copies) const {
  double bound = 1.0;
  for (size_t e = 0; e < copies.size(); ++e) bound = std::max(bound, mean_par_[e] / copies[e]);
  return bound;
}

}  // namespace trimtab
