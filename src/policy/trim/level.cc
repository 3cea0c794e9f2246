// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/level.h"

#include <algorithm>

#include "policy/layer_placement.h"

namespace trimtab {
namespace {

struct Exchange {
  int slot_a = -1;  // of the highest rank
  int slot_b = -1;
  int rank_b = -1;
  double peak = 0;  // the larger load of the two ranks afterwards, plus the price of moves
};

class Leveller {
 public:
  Leveller(const LayerTask& task, std::vector<int32_t>& placement)
      : task_(task),
        placement_(placement),
        load_(task.num_ranks()),
        on_rank_(count_held<uint8_t>(task.slots, placement, task.num_experts)) {
    const std::vector<int32_t> replicas = task.replicas(placement);
    std::vector<double> share(task.num_experts);  // of one replica
    double all = 0;
    for (int32_t e = 0; e < task.num_experts; ++e) {
      share[e] = double{task.episodes->of(e)[0]} / replicas[e];
      all += share[e];
    }
    for (int r = 0; r < task.num_ranks(); ++r) {
      load_[r] = all * task.full[r];
      for (int s = task.slots.first(r); s < task.slots.end(r); ++s) {
        slot_share_.push_back(share[placement[s]]);
        load_[r] += slot_share_.back();
      }
    }
  }

  double run(double target) {
    for (;;) {
      const auto highest = std::max_element(load_.begin(), load_.end());
      const double peak = *highest;
      if (peak <= target) return peak;
      const int a = static_cast<int>(highest - load_.begin());
      const Exchange best = find(a);
      if (best.slot_a < 0) return peak;
      make(a, best);
    }
  }

 private:
  Exchange find(int a) {
    const double high = load_[a];
    Exchange best;
    best.peak = high * (1 - 1e-9);
    for (int b = 0; b < task_.num_ranks(); ++b) {
      const double low = load_[b];
      if (b == a || 0.5 * (high + low) >= best.peak) continue;
      const int first_b = task_.slots.first(b);
      const int end_b = task_.slots.end(b);
      for (int i = task_.slots.first(a); i < task_.slots.end(a); ++i) {
        for (int j = first_b; j < end_b; ++j) {
          const double shift = slot_share_[i] - slot_share_[j];
          const double peak = std::max(high - shift, low + shift);
          if (peak < best.peak) consider(a, b, i, j, peak, best);
        }
      }
    }
    return best;
  }

  void consider(int a, int b, int i, int j, double peak, Exchange& best) {
    const int32_t p = placement_[i];
    const int32_t q = placement_[j];
    if (on_rank_(b, p) != 0 || on_rank_(a, q) != 0) return;
    if (task_.move_price > 0) {
      const int moves = int{task_.holds(a, p)} - int{task_.holds(b, p)} + int{task_.holds(b, q)} -
                        int{task_.holds(a, q)};
      peak += double{task_.move_price} * moves;
      if (peak >= best.peak) return;
    }
    best = {.slot_a = i, .slot_b = j, .rank_b = b, .peak = peak};
  }

  void make(int a, const Exchange& exchange) {
    const int i = exchange.slot_a;
    const int j = exchange.slot_b;
    const int b = exchange.rank_b;
    const double shift = slot_share_[i] - slot_share_[j];
    load_[a] -= shift;
    load_[b] += shift;
    --on_rank_(a, placement_[i]);
    ++on_rank_(a, placement_[j]);
    --on_rank_(b, placement_[j]);
    ++on_rank_(b, placement_[i]);
    std::swap(placement_[i], placement_[j]);
    std::swap(slot_share_[i], slot_share_[j]);
  }

  const LayerTask& task_;
  std::vector<int32_t>& placement_;
  std::vector<double> load_;        // [ranks]
  Matrix<uint8_t> on_rank_;         // [ranks, experts]
  std::vector<double> slot_share_;  // [searched slots] the load of the replica in it
};

}  // namespace

double level(const LayerTask& task, std::vector<int32_t>& placement, double target) {
  return Leveller(task, placement).run(target);
}

}  // namespace trimtab
