// SPDX-License-Identifier: Apache-2.0
#include "policy/flashlb/flash_stats.h"

#include <algorithm>
#include <numeric>

#include "trimtab/table.h"

namespace trimtab {
namespace {

void add_covariance(EpisodeStats& stats) {
  const size_t experts = cells(stats.num_experts);
  const size_t episodes = cells(stats.num_episodes);
  std::vector<double> centred = stats.load;
  for (size_t i = 0; i < centred.size(); ++i) centred[i] -= stats.mean[i / episodes];
  stats.covariance.assign(experts * experts, 0.0);
  for (size_t a = 0; a < experts; ++a) {
    for (size_t b = a; b < experts; ++b) {
      double sum = 0;
      for (size_t k = 0; k < episodes; ++k)
        sum += centred[a * episodes + k] * centred[b * episodes + k];
      sum /= stats.num_episodes - 1;
      stats.covariance[a * experts + b] = stats.covariance[b * experts + a] = sum;
    }
  }
}

}  // namespace

EpisodeStats episode_stats(const Load& episodes, int layer) {
  EpisodeStats stats;
  stats.num_experts = episodes.num_experts;
  std::vector<int64_t> used;
  for (int64_t t = 0; t < episodes.num_steps; ++t) {
    const std::span<const int64_t> counts = episodes.at(t, layer);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (total == 0) continue;
    used.push_back(t);
    stats.total.push_back(static_cast<double>(total));
  }
  stats.num_episodes = static_cast<int>(used.size());
  for (int e = 0; e < stats.num_experts; ++e) {
    double sum = 0;
    for (const int64_t t : used) {
      stats.load.push_back(static_cast<double>(episodes.at(t, layer)[e]));
      sum += stats.load.back();
    }
    stats.mean.push_back(used.empty() ? 0.0 : sum / static_cast<double>(used.size()));
  }
  if (used.size() > 1) add_covariance(stats);
  return stats;
}

}  // namespace trimtab
