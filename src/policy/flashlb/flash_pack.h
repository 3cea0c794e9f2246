// SPDX-License-Identifier: Apache-2.0
// FlashPack makes one placement of FlashLB's search: given how many replicas each expert gets, it
// decides where they go, and measures how level that is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/flashlb/flash_stats.h"
#include "policy/matrix.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {

class FlashPack {
 public:
  // stats and what is behind `slots` must outlive this. Experts and ranks count as z standard
  // deviations above their mean.
  FlashPack(const EpisodeStats& stats, SlotRanges slots, double z);

  // Packs the experts, the one with the largest mean share first, each on the ranks whose risk
  // (mean + z x standard deviation, with the covariance of what is there already) stays lowest.
  // replicas: [experts], >= 1, which sum to the slots. Returns [slots]. Every rank gets different
  // experts; where the numbers of replicas make that impossible, some experts get other numbers,
  // and only a rank with more slots than there are experts gets one twice.
  std::vector<int32_t> pack(std::span<const int32_t> replicas);

  // The mean over the episodes of their PAR under a placement; 1 without episodes.
  double score(std::span<const int32_t> placement);

  // No placement with these replicas scores lower: some rank carries a share of the worst expert in
  // every episode.
  double score_bound(std::span<const int32_t> replicas) const;

  // mean + z x standard deviation of an expert.
  double risk(int expert) const { return risk_[expert]; }
  int num_slots() const { return slots_.num_slots(); }
  int num_ranks() const { return slots_.num_ranks(); }
  int num_experts() const { return stats_.num_experts; }

 private:
  int free_slots(int rank) const { return slots_.count(rank) - used_[rank]; }
  bool holds(int rank, int32_t expert) const { return held_(rank, expert) != 0; }
  std::span<const int32_t> packed(int rank) const;
  double covariance_with(int rank, int32_t expert, std::span<const int32_t> replicas) const;
  void rank_candidates(int32_t expert, std::span<const int32_t> replicas);
  void put(int rank, int32_t expert);
  bool free_a_slot(int32_t expert, std::span<const int32_t> replicas);
  void recompute(int rank, std::span<const int32_t> replicas);
  void fill_rest();

  const EpisodeStats& stats_;
  SlotRanges slots_;
  const double z_;
  std::vector<double> risk_;           // [experts]
  std::vector<double> mean_par_;       // [experts] the score of the expert alone on a rank
  std::vector<int32_t> placement_;     // [slots], filled up to used_ of each rank
  std::vector<int> used_;              // [ranks]
  Matrix<uint8_t> held_;               // [ranks, experts]
  std::vector<double> rank_mean_;      // [ranks]
  std::vector<double> rank_variance_;  // [ranks]
  struct Candidate {
    double risk, variance;
    int rank;
  };
  std::vector<Candidate> candidates_;
  std::vector<double> rank_load_, peak_;  // [episodes]
};

}  // namespace trimtab
