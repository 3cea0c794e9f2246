// SPDX-License-Identifier: Apache-2.0
// This search decides which rank holds which replicas, given how many each expert has. It minimises
// the mean over episodes of a soft peak, (1/b) log sum_r exp(b x_rk), plus the price of moves. For
// each pair of ranks it draws one of all S x S exchanges of two slots, or none, with a probability
// that falls with its score: a heat bath, cooled down to plain descent.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/portable_math.h"
#include "base/random.h"
#include "policy/matrix.h"
#include "policy/trim/layer_task.h"
#include "policy/trim/pair_kernel.h"
#include "trimtab/table.h"

namespace trimtab {

// The mean over episodes of the (hard) peak of a placement [searched slots], plus the price of its
// moves.
double placement_cost(const LayerTask& task, std::span<const int32_t> placement);

// Noise holds negated Gumbel values for the heat bath: the least of (score + T * noise) is a draw
// with probability ~ exp(-score / T). It is made once and shared by all searches.
class Noise {
 public:
  // most_slots: the slots of the rank that has the most.
  explicit Noise(int most_slots);
  // [most_slots, lane_width(most_slots)] values at a place that `bits` chooses.
  const float* block(uint64_t bits) const { return values_.data() + bits % kPlaces; }

 private:
  static constexpr size_t kPlaces = 4096;
  std::vector<float> values_;
};

class ExchangeSearch {
 public:
  // placement: [searched slots]. task, its episodes and the noise must outlive the search.
  ExchangeSearch(const LayerTask& task, const Noise& noise, std::vector<int32_t> placement,
                 uint64_t seed);

  // Sets b and recomputes every term from the placement.
  void sharpen(float sharpness);
  // Visits every pair of ranks once and draws an exchange at this temperature (in PAR; 0: takes the
  // best that gains). Returns how many it made. Needs sharpen() first.
  int sweep(float temperature);

  std::span<const int32_t> placement() const { return placement_; }

 private:
  int32_t& expert_at(int rank, int slot) { return placement_[task_.slots.first(rank) + slot]; }
  // Fills cost [width] with what it costs that a slot of `rank` goes to `other`. Beyond the rank's
  // slots, exchanges are blocked.
  void price(int rank, int other, float* cost);
  bool visit(int a, int b, float temperature);
  void exchange(int a, int slot_a, int b, int slot_b);
  void write_slot(int rank, int slot);

  const LayerTask& task_;
  const Noise& noise_;
  int episodes_;
  int width_;
  BestExchange best_exchange_;
  std::vector<int32_t> placement_;
  Matrix<float> share_;      // [experts, episodes] the load of one replica
  Matrix<float> base_;       // [ranks, episodes] load of the slots that are not searched
  Matrix<uint8_t> on_rank_;  // [ranks, experts] searched slots that hold the expert
  float sharpness_ = 0;
  int sweeps_ = 0;
  Matrix<float> up_, down_;             // [experts, episodes] exp(b v), exp(-b v)
  Matrix<float> slot_up_, slot_down_;   // [ranks, episodes x width] the same of each slot
  Matrix<float> potential_;             // [ranks, episodes] exp(b (x - shift_k))
  std::vector<float> sum_;              // [episodes] of potential_ over ranks
  std::vector<float> scale_;            // [episodes] weight / (b sum)
  std::vector<float> term_a_, term_b_;  // [episodes] potential * scale
  std::vector<float> cost_a_, cost_b_;  // [width]
  std::vector<int32_t> order_;
  Random random_;
};

}  // namespace trimtab
