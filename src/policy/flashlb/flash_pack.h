// SPDX-License-Identifier: Apache-2.0
// One map of FlashLB's search: given how many copies each expert gets, where they go, and how level
// that is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/flashlb/flash_stats.h"

namespace trimtab {

class FlashPack {
 public:
  // stats and first_slots ([ranks + 1]) must outlive this. z: how many standard deviations above
  // the mean an expert or a rank is reckoned with.
  FlashPack(const EpisodeStats& stats, std::span<const int32_t> first_slots, double z);

  // Packs the experts, the one with the largest mean share first, each on the ranks whose risk
  // (mean + z x standard deviation, with the covariance of what is there already) stays lowest.
  // copies: [experts], >= 1, summing to the slots. Returns [slots]. Every rank gets different
  // experts; where the copies make that impossible, some experts get other numbers of copies, and
  // only a rank with more slots than there are experts gets one twice.
  std::vector<int32_t> pack(std::span<const int32_t> copies);

  // Mean over the episodes of their PAR under a map; 1 without episodes.
  double score(std::span<const int32_t> map);

  // No map with these copies scores lower: some rank carries a share of the worst expert in every
  // episode.
  double score_bound(std::span<const int32_t> copies) const;

  // mean + z x standard deviation of an expert.
  double risk(int expert) const { return risk_[expert]; }
  int num_slots() const { return first_slots_.back(); }
  int num_ranks() const { return static_cast<int>(first_slots_.size()) - 1; }
  int num_experts() const { return stats_.num_experts; }

 private:
  size_t free_slots(size_t rank) const;
  bool holds(size_t rank, size_t expert) const;
  double covariance_with(size_t rank, size_t expert, std::span<const int32_t> copies) const;
  void rank_candidates(size_t expert, std::span<const int32_t> copies);
  void put(size_t rank, size_t expert);
  bool make_room(size_t expert, std::span<const int32_t> copies);
  void reckon(size_t rank, std::span<const int32_t> copies);
  void fill_rest();

  const EpisodeStats& stats_;
  const std::vector<int32_t> first_slots_;
  const double z_;
  std::vector<double> risk_;           // [experts]
  std::vector<double> mean_par_;       // [experts] what the expert alone on a rank would score
  std::vector<int32_t> map_;           // [slots], filled up to used_ of each rank
  std::vector<size_t> used_;           // [ranks]
  std::vector<uint8_t> held_;          // [ranks, experts]
  std::vector<double> rank_mean_;      // [ranks]
  std::vector<double> rank_variance_;  // [ranks]
  struct Candidate {
    double risk, variance;
    size_t rank;
  };
  std::vector<Candidate> candidates_;
  std::vector<double> rank_load_, peak_;  // [episodes]
};

}  // namespace trimtab
