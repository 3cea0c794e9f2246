// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/change_copies.h"

namespace trimtab {
namespace {

// Overwrites replicas in a given map.
class CopyChanger {
 public:
  CopyChanger(const LayerTask& task, std::vector<int32_t> map, std::span<const float> demand)
      : task_(task),
        k_(task.episodes->count),
        demand_(demand),
        map_(std::move(map)),
        copies_(task.copies(map_)),
        on_rank_(static_cast<size_t>(task.num_ranks) * demand.size(), 0) {
    for (int r = 0; r < task.num_ranks; ++r) {
      for (int s = first(r); s < first(r + 1); ++s) ++on_rank(r, expert(s));
    }
  }

  std::vector<int32_t> run(float reluctance, int64_t max_changes) {
    for (int64_t i = 0; i < max_changes && change_one(reluctance); ++i) {
    }
    return std::move(map_);
  }

 private:
  int first(int rank) const { return task_.first_slots[rank]; }
  size_t expert(int slot) const { return static_cast<size_t>(map_[slot]); }
  uint8_t& on_rank(int rank, size_t e) {
    return on_rank_[static_cast<size_t>(rank) * demand_.size() + e];
  }
  float size(size_t e, int32_t copies) const { return demand_[e] / static_cast<float>(copies); }

  bool change_one(float reluctance) {
    size_t needy = 0;
    for (size_t e = 1; e < demand_.size(); ++e) {
      if (size(e, copies_[e]) > size(needy, copies_[needy])) needy = e;
    }
    const float limit = size(needy, copies_[needy]) / (1.0F + reluctance);
    if (size(needy, copies_[needy] + 1) >= limit) return false;
    update_loads();
    int best_rank = -1;
    int best_slot = -1;
    float best_power = 0;
    for (int r = 0; r < task_.num_ranks; ++r) {
      if (on_rank(r, needy) != 0) continue;
      for (int s = first(r); s < first(r + 1); ++s) {
        const size_t e = expert(s);
        if (copies_[e] <= task_.full_total + task_.min_copies() || size(e, copies_[e] - 1) >= limit)
          continue;
        const float power = power_after(r, e, needy);
        if (best_slot >= 0 && power >= best_power) continue;
        best_rank = r;
        best_slot = s;
        best_power = power;
      }
    }
    if (best_slot < 0) return false;
    overwrite(best_rank, best_slot, needy);
    return true;
  }

  void update_loads() {
    load_.assign(static_cast<size_t>(task_.num_ranks) * k_, 0);
    for (int r = 0; r < task_.num_ranks; ++r) {
      for (int s = first(r); s < first(r + 1); ++s)
        add(r, expert(s), 1.0F / static_cast<float>(copies_[expert(s)]), load_);
    }
  }

  void add(int rank, size_t e, float factor, std::vector<float>& load) const {
    const float* share = task_.episodes->of(static_cast<int>(e)).data();
    float* to = load.data() + static_cast<size_t>(rank) * k_;
    for (size_t k = 0; k < k_; ++k) to[k] += factor * share[k];
  }

  // How uneven the ranks are, as the mean over episodes of the sum of eighth powers of loads, once
  // a copy of `out` on a rank has become one of `in`.
  float power_after(int rank, size_t out, size_t in) {
    trial_ = load_;
    const float out_now = 1.0F / static_cast<float>(copies_[out]);
    const float out_then = 1.0F / static_cast<float>(copies_[out] - 1);
    const float in_now = 1.0F / static_cast<float>(copies_[in]);
    const float in_then = 1.0F / static_cast<float>(copies_[in] + 1);
    for (int r = 0; r < task_.num_ranks; ++r) {
      if (on_rank(r, out) != 0) add(r, out, out_then - out_now, trial_);
      if (on_rank(r, in) != 0) add(r, in, in_then - in_now, trial_);
    }
    add(rank, out, -out_then, trial_);
    add(rank, in, in_then, trial_);
    const std::vector<float>& weight = task_.episodes->weight;
    float sum = 0;
    for (size_t i = 0; i < trial_.size(); i += k_) {
      for (size_t k = 0; k < k_; ++k) {
        const float square = trial_[i + k] * trial_[i + k];
        sum += weight[k] * ((square * square) * (square * square));
      }
    }
    return sum;
  }

  void overwrite(int rank, int slot, size_t e) {
    --copies_[expert(slot)];
    --on_rank(rank, expert(slot));
    map_[slot] = static_cast<int32_t>(e);
    ++copies_[e];
    ++on_rank(rank, e);
  }

  const LayerTask& task_;
  size_t k_;
  std::span<const float> demand_;
  std::vector<int32_t> map_;
  std::vector<int32_t> copies_;   // [experts]
  std::vector<uint8_t> on_rank_;  // [ranks][experts]
  std::vector<float>
      load_;  // [ranks][episodes] of the searched slots; the full ones level everything alike
  std::vector<float> trial_;
};

}  // namespace

std::vector<int32_t> change_copies(const LayerTask& task, std::vector<int32_t> map,
                                   std::span<const float> demand, float reluctance,
                                   int64_t max_changes) {
  return CopyChanger(task, std::move(map), demand).run(reluctance, max_changes);
}

}  // namespace trimtab
