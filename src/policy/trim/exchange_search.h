// SPDX-License-Identifier: Apache-2.0
// Search by exchanges: given how many copies each expert has, which rank should hold which?
// Minimises the mean over episodes of a soft peak, (1/b) log sum_r exp(b x_rk), plus the price of
// moves, by drawing one of all S x S exchanges of a rank pair (or none) with a probability that
// falls with its score: a heat bath, cooled down to plain descent.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/portable_math.h"
#include "base/random.h"
#include "policy/trim/layer_task.h"
#include "policy/trim/pair_kernel.h"
#include "trimtab/table.h"

namespace trimtab {

// Mean over episodes of the (hard) peak of a map [searched slots], plus the price of its moves.
double map_cost(const LayerTask& task, std::span<const int32_t> map);

// Noise for the heat bath, negated Gumbel: the least of (score + T * noise) is a draw with
// probability ~ exp(-score / T). Made once, shared by all searches. width: the most slots of a
// rank.
class Noise {
 public:
  explicit Noise(int most_slots);
  // [most_slots][lane_width(most_slots)] values at a place that `bits` chooses.
  const float* block(uint64_t bits) const { return values_.data() + bits % kPlaces; }

 private:
  static constexpr size_t kPlaces = 4096;
  std::vector<float> values_;
};

class ExchangeSearch {
 public:
  // map: [searched slots]. task, its episodes and the noise must outlive the search.
  ExchangeSearch(const LayerTask& task, const Noise& noise, std::vector<int32_t> map,
                 uint64_t seed);

  // Sets b and recomputes every term from the map.
  void sharpen(float sharpness);
  // Visits every pair of ranks once and draws an exchange at this temperature (in PAR; 0: takes the
  // best that gains). Returns how many it made. Needs sharpen() first.
  int sweep(float temperature);

  std::span<const int32_t> map() const { return map_; }

 private:
  size_t cell(int rank) const { return cells(rank, episodes_); }
  uint8_t& on_rank(int rank, int expert) {
    return on_rank_[cells(rank, task_.num_experts) + static_cast<size_t>(expert)];
  }
  int32_t expert_at(int rank, int slot) const {
    return map_[static_cast<size_t>(task_.first_slots[rank] + slot)];
  }
  // Fills cost[width] for the slots of `rank` if they went to `other`; null `cost` rows of padding
  // stay blocked.
  void price(int rank, int other, float* cost);
  bool visit(int a, int b, float temperature);
  void exchange(int a, int slot_a, int b, int slot_b);
  void write_slot(int rank, int slot);

  const LayerTask& task_;
  const Noise& noise_;
  int episodes_;
  int width_;
  BestExchange best_exchange_;
  std::vector<int32_t> map_;
  std::vector<float> share_;      // [experts][episodes] of one replica
  std::vector<float> base_;       // [ranks][episodes] load of the slots that are not searched
  std::vector<uint8_t> on_rank_;  // [ranks][experts] copies among the searched slots
  float sharpness_ = 0;
  int sweeps_ = 0;
  std::vector<float> up_, down_;            // [experts][episodes] exp(b v), exp(-b v)
  std::vector<float> slot_up_, slot_down_;  // [ranks][episodes][width]
  std::vector<float> potential_;            // [ranks][episodes] exp(b (x - shift_k))
  std::vector<float> sum_;                  // [episodes] of potential_ over ranks
  std::vector<float> scale_;                // [episodes] weight / (b sum)
  std::vector<float> term_a_, term_b_;      // [episodes] potential * scale
  std::vector<float> cost_a_, cost_b_;      // [width]
  std::vector<int32_t> order_;
  Random random_;
};

}  // namespace trimtab
