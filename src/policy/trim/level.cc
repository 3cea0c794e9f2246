// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/level.h"

#include <algorithm>

#include "trimtab/table.h"

namespace trimtab {
namespace {

struct Exchange {
  int slot_a = -1;  // of the highest rank
  int slot_b = -1;
  int rank_b = -1;
  double peak = 0;  // of the two ranks afterwards, plus the price of moves
};

class Leveller {
 public:
  Leveller(const LayerTask& task, std::vector<int32_t>& map) : task_(task), map_(map) {
    const auto num_experts = static_cast<size_t>(task.num_experts);
    const std::vector<int32_t> copies = task.copies(map);
    share_.resize(num_experts);
    double all = 0;
    for (size_t e = 0; e < num_experts; ++e) {
      share_[e] = static_cast<double>(task.episodes->of(static_cast<int>(e))[0]) /
                  static_cast<double>(copies[e]);
      all += share_[e];
    }
    on_rank_.assign(static_cast<size_t>(task.num_ranks) * num_experts, 0);
    load_.resize(task.num_ranks);
    for (int r = 0; r < task.num_ranks; ++r) {
      load_[r] = all * static_cast<double>(task.full[r]);
      for (int s = first(r); s < first(r + 1); ++s) {
        slot_share_.push_back(share_[static_cast<size_t>(map[s])]);
        load_[r] += slot_share_.back();
        ++on_rank(r, map[s]);
      }
    }
  }

  double run(double target) {
    for (;;) {
      const int a = static_cast<int>(std::max_element(load_.begin(), load_.end()) - load_.begin());
      const double peak = load_[a];
      if (peak <= target) return peak;
      const Exchange best = find(a);
      if (best.slot_a < 0) return peak;
      make(a, best);
    }
  }

 private:
  int first(int rank) const { return task_.first_slots[rank]; }
  uint8_t& on_rank(int rank, int32_t expert) {
    return on_rank_[cells(rank, task_.num_experts) + static_cast<size_t>(expert)];
  }

  Exchange find(int a) {
    const double high = load_[a];
    Exchange best;
    best.peak = high * (1 - 1e-9);
    for (int b = 0; b < task_.num_ranks; ++b) {
      const double low = load_[b];
      if (b == a || 0.5 * (high + low) >= best.peak) continue;
      for (int i = first(a); i < first(a + 1); ++i) {
        for (int j = first(b); j < first(b + 1); ++j) {
          const double shift = slot_share_[i] - slot_share_[j];
          const double peak = std::max(high - shift, low + shift);
          if (peak < best.peak) consider(a, b, i, j, peak, best);
        }
      }
    }
    return best;
  }

  void consider(int a, int b, int i, int j, double peak, Exchange& best) {
    const int32_t p = map_[i];
    const int32_t q = map_[j];
    if (on_rank(b, p) != 0 || on_rank(a, q) != 0) return;
    if (task_.move_price > 0) {
      const int moves = int{task_.holds(a, p)} - int{task_.holds(b, p)} + int{task_.holds(b, q)} -
                        int{task_.holds(a, q)};
      peak += static_cast<double>(task_.move_price) * moves;
      if (peak >= best.peak) return;
    }
    best = {.slot_a = i, .slot_b = j, .rank_b = b, .peak = peak};
  }

  void make(int a, const Exchange& exchange) {
    const auto i = static_cast<size_t>(exchange.slot_a);
    const auto j = static_cast<size_t>(exchange.slot_b);
    const double shift = slot_share_[i] - slot_share_[j];
    load_[a] -= shift;
    load_[exchange.rank_b] += shift;
    --on_rank(a, map_[i]);
    ++on_rank(a, map_[j]);
    --on_rank(exchange.rank_b, map_[j]);
    ++on_rank(exchange.rank_b, map_[i]);
    std::swap(map_[i], map_[j]);
    std::swap(slot_share_[i], slot_share_[j]);
  }

  const LayerTask& task_;
  std::vector<int32_t>& map_;
  std::vector<double> share_;       // [experts] of one replica
  std::vector<double> slot_share_;  // [searched slots]
  std::vector<double> load_;        // [ranks]
  std::vector<uint8_t> on_rank_;    // [ranks][experts]
};

}  // namespace

double level(const LayerTask& task, std::vector<int32_t>& map, double target) {
  return Leveller(task, map).run(target);
}

}  // namespace trimtab
