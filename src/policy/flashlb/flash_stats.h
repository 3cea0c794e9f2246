// SPDX-License-Identifier: Apache-2.0
// The statistics that FlashLB plans on: the loads of a layer over consecutive episodes of a window,
// their mean, variance and covariance.
#pragma once

#include <cstdint>
#include <vector>

#include "trimtab/load.h"

namespace trimtab {

struct EpisodeStats {
  int num_episodes = 0;
  int num_experts = 0;
  std::vector<double> load;  // [experts, episodes]
  std::vector<double> mean;  // [experts]
  // [experts, experts]; empty with fewer than two episodes, when all is 0.
  std::vector<double> covariance;
  std::vector<double> total;  // [episodes]

  double variance(int expert) const {
    const auto e = static_cast<size_t>(expert);
    return covariance.empty() ? 0.0 : covariance[e * static_cast<size_t>(num_experts) + e];
  }
};

// Statistics over the steps of `episodes`. Steps without tokens in the layer are left out: they say
// nothing about it.
EpisodeStats episode_stats(const Load& episodes, int layer);

}  // namespace trimtab
