// SPDX-License-Identifier: Apache-2.0
#include "policy/flashlb/flash_pack.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "load/replicas.h"
#include "policy/layer_placement.h"

namespace trimtab {

FlashPack::FlashPack(const EpisodeStats& stats, SlotRanges slots, double z)
    : stats_(stats),
      slots_(slots),
      z_(z),
      placement_(slots.num_slots()),
      used_(slots.num_ranks()),
      held_(slots.num_ranks(), stats.num_experts),
      rank_mean_(slots.num_ranks()),
      rank_variance_(slots.num_ranks()),
      rank_load_(stats.num_episodes),
      peak_(stats.num_episodes) {
  const int episodes = stats.num_episodes;
  const Table load(stats.load.data(), stats.num_experts, episodes);
  for (int32_t e = 0; e < stats.num_experts; ++e) {
    risk_.push_back(stats.mean[e] + z * std::sqrt(stats.variance(e)));
    double sum = 0;
    for (int k = 0; k < episodes; ++k) sum += load(e, k) * num_ranks() / stats.total[k];
    mean_par_.push_back(episodes == 0 ? 0.0 : sum / episodes);
  }
}

// The experts that were packed on a rank so far.
std::span<const int32_t> FlashPack::packed(int rank) const {
  return slots_.of(rank, std::span<const int32_t>(placement_)).first(used_[rank]);
}

void FlashPack::put(int rank, int32_t expert) {
  placement_[slots_.first(rank) + used_[rank]++] = expert;
  held_(rank, expert) = 1;
}

// The covariance of an expert's load with the load already on a rank.
double FlashPack::covariance_with(int rank, int32_t expert,
                                  std::span<const int32_t> replicas) const {
  const Table covariance(stats_.covariance.data(), num_experts(), num_experts());
  const double* row = covariance[expert].data();
  double sum = 0;
  for (const int32_t other : packed(rank)) sum += row[other] / replicas[other];
  return sum;
}

// The ranks that can take the expert, lowest risk with it first, lower rank first among equals.
void FlashPack::rank_candidates(int32_t expert, std::span<const int32_t> replicas) {
  candidates_.clear();
  const double share = 1.0 / replicas[expert];
  const double own_variance = stats_.variance(expert) * share * share;
  for (int r = 0; r < num_ranks(); ++r) {
    if (free_slots(r) == 0 || holds(r, expert)) continue;
    double variance = 0;
    if (!stats_.covariance.empty()) {
      // Rounding can leave a variance that should be 0 just below it.
      variance = std::max(
          0.0, rank_variance_[r] + own_variance + 2 * share * covariance_with(r, expert, replicas));
    }
    const double mean = rank_mean_[r] + stats_.mean[expert] * share;
    candidates_.push_back({mean + z_ * std::sqrt(variance), variance, r});
  }
  const int64_t wanted = std::min<int64_t>(std::ssize(candidates_), replicas[expert]);
  std::ranges::partial_sort(candidates_, candidates_.begin() + wanted,
                            [](const Candidate& a, const Candidate& b) {
                              return std::tie(a.risk, a.rank) < std::tie(b.risk, b.rank);
                            });
  candidates_.resize(wanted);
}

// Computes mean and variance of a rank from all that it holds.
void FlashPack::recompute(int rank, std::span<const int32_t> replicas) {
  rank_mean_[rank] = 0;
  double variance = 0;
  for (const int32_t e : packed(rank)) {
    rank_mean_[rank] += stats_.mean[e] / replicas[e];
    if (!stats_.covariance.empty()) variance += covariance_with(rank, e, replicas) / replicas[e];
  }
  rank_variance_[rank] = std::max(0.0, variance);
}

// Every rank with a free slot holds the expert: another rank passes one of its experts on to such a
// rank and takes it.
bool FlashPack::free_a_slot(int32_t expert, std::span<const int32_t> replicas) {
  for (int full = 0; full < num_ranks(); ++full) {
    if (holds(full, expert)) continue;
    for (int i = 0; i < used_[full]; ++i) {
      int32_t& slot = placement_[slots_.first(full) + i];
      const int32_t passed = slot;
      for (int r = 0; r < num_ranks(); ++r) {
        if (free_slots(r) == 0 || holds(r, passed)) continue;
        put(r, passed);
        held_(full, passed) = 0;
        held_(full, expert) = 1;
        slot = expert;
        recompute(full, replicas);
        recompute(r, replicas);
        return true;
      }
    }
  }
  return false;
}

// Slots that no replica could take without being a second one on its rank go to the riskiest share
// that the rank lacks.
void FlashPack::fill_rest() {
  std::vector<int32_t> placed(num_experts(), 0);
  for (int r = 0; r < num_ranks(); ++r) {
    for (const int32_t e : packed(r)) ++placed[e];
  }
  for (int r = 0; r < num_ranks(); ++r) {
    while (free_slots(r) > 0) {
      int32_t best = 0;
      for (int32_t e = 1; e < num_experts(); ++e) {
        const bool lacks = !holds(r, e) && holds(r, best);
        const bool same = holds(r, e) == holds(r, best);
        if (lacks || (same && risk_[e] / placed[e] > risk_[best] / placed[best])) best = e;
      }
      put(r, best);
      ++placed[best];
    }
  }
}

std::vector<int32_t> FlashPack::pack(std::span<const int32_t> replicas) {
  std::ranges::fill(used_, 0);
  std::ranges::fill(held_.values(), uint8_t{0});
  std::ranges::fill(rank_mean_, 0.0);
  std::ranges::fill(rank_variance_, 0.0);
  const auto share = [&](int32_t e) { return stats_.mean[e] / replicas[e]; };
  for (const int32_t e :
       sorted_ids(num_experts(), [&](int32_t a, int32_t b) { return share(a) > share(b); })) {
    rank_candidates(e, replicas);
    for (const Candidate& c : candidates_) {
      put(c.rank, e);
      rank_mean_[c.rank] += share(e);
      rank_variance_[c.rank] = c.variance;
    }
    for (int64_t placed = std::ssize(candidates_); placed < replicas[e] && free_a_slot(e, replicas);
         ++placed) {
    }
  }
  fill_rest();
  return placement_;
}

double FlashPack::score(std::span<const int32_t> placement) {
  const int episodes = stats_.num_episodes;
  if (episodes == 0) return 1.0;
  const Table all(stats_.load.data(), num_experts(), episodes);
  const std::vector<int32_t> replicas = replica_counts(placement, num_experts());
  std::ranges::fill(peak_, 0.0);
  for (int r = 0; r < num_ranks(); ++r) {
    std::ranges::fill(rank_load_, 0.0);
    for (const int32_t e : slots_.of(r, placement)) {
      const double share = 1.0 / replicas[e];
      const double* load = all[e].data();
      for (int k = 0; k < episodes; ++k) rank_load_[k] += load[k] * share;
    }
    for (int k = 0; k < episodes; ++k) peak_[k] = std::max(peak_[k], rank_load_[k]);
  }
  double sum = 0;
  for (int k = 0; k < episodes; ++k) sum += peak_[k] * num_ranks() / stats_.total[k];
  return sum / episodes;
}

double FlashPack::score_bound(std::span<const int32_t> replicas) const {
  double bound = 1.0;
  for (int32_t e = 0; e < num_experts(); ++e) bound = std::max(bound, mean_par_[e] / replicas[e]);
  return bound;
}

}  // namespace trimtab
