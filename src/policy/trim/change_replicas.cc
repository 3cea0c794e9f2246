// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/change_replicas.h"

#include "policy/layer_placement.h"

namespace trimtab {
namespace {

// Overwrites replicas in a given placement.
class ReplicaChanger {
 public:
  ReplicaChanger(const LayerTask& task, std::vector<int32_t> placement,
                 std::span<const float> demand)
      : task_(task),
        episodes_(task.episodes->count),
        demand_(demand),
        placement_(std::move(placement)),
        replicas_(task.replicas(placement_)),
        on_rank_(count_held<uint8_t>(task.slots, placement_, task.num_experts)) {}

  std::vector<int32_t> run(float reluctance, int64_t max_changes) {
    for (int64_t i = 0; i < max_changes && change_one(reluctance); ++i) {
    }
    return std::move(placement_);
  }

 private:
  float size(int32_t e, int32_t replicas) const { return share_of(demand_[e], replicas); }

  bool change_one(float reluctance) {
    int32_t needy = 0;
    for (int32_t e = 1; e < task_.num_experts; ++e) {
      if (size(e, replicas_[e]) > size(needy, replicas_[needy])) needy = e;
    }
    const float limit = size(needy, replicas_[needy]) / (1.0F + reluctance);
    if (size(needy, replicas_[needy] + 1) >= limit) return false;
    update_loads();
    int best_rank = -1;
    int best_slot = -1;
    float best_power = 0;
    for (int r = 0; r < task_.num_ranks(); ++r) {
      if (on_rank_(r, needy) != 0) continue;
      for (int s = task_.slots.first(r); s < task_.slots.end(r); ++s) {
        const int32_t e = placement_[s];
        if (replicas_[e] <= task_.full_total + task_.min_replicas() ||
            size(e, replicas_[e] - 1) >= limit)
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
    load_ = Matrix<float>(task_.num_ranks(), episodes_);
    for (int r = 0; r < task_.num_ranks(); ++r) {
      for (const int32_t e : task_.slots.of(r, std::span<const int32_t>(placement_)))
        add(r, e, share_of(1, replicas_[e]), load_);
    }
  }

  void add(int rank, int32_t e, float factor, Matrix<float>& load) const {
    const float* share = task_.episodes->of(e).data();
    float* to = load[rank].data();
    for (int k = 0; k < episodes_; ++k) to[k] += factor * share[k];
  }

  // Measures how uneven the ranks are once a replica of `out` on a rank has become one of `in`: the
  // mean over episodes of the sum of eighth powers of loads.
  float power_after(int rank, int32_t out, int32_t in) {
    trial_ = load_;
    const float out_now = share_of(1, replicas_[out]);
    const float out_then = share_of(1, replicas_[out] - 1);
    const float in_now = share_of(1, replicas_[in]);
    const float in_then = share_of(1, replicas_[in] + 1);
    for (int r = 0; r < task_.num_ranks(); ++r) {
      if (on_rank_(r, out) != 0) add(r, out, out_then - out_now, trial_);
      if (on_rank_(r, in) != 0) add(r, in, in_then - in_now, trial_);
    }
    add(rank, out, -out_then, trial_);
    add(rank, in, in_then, trial_);
    const std::vector<float>& weight = task_.episodes->weight;
    float sum = 0;
    for (int r = 0; r < task_.num_ranks(); ++r) {
      const float* load = trial_[r].data();
      for (int k = 0; k < episodes_; ++k) {
        const float square = load[k] * load[k];
        sum += weight[k] * ((square * square) * (square * square));
      }
    }
    return sum;
  }

  void overwrite(int rank, int slot, int32_t e) {
    --replicas_[placement_[slot]];
    --on_rank_(rank, placement_[slot]);
    placement_[slot] = e;
    ++replicas_[e];
    ++on_rank_(rank, e);
  }

  const LayerTask& task_;
  const int episodes_;
  std::span<const float> demand_;
  std::vector<int32_t> placement_;
  std::vector<int32_t> replicas_;  // [experts]
  Matrix<uint8_t> on_rank_;        // [ranks, experts]
  // Loads of the searched slots alone, since the full ones level everything alike, and the same
  // after a change: [ranks, episodes].
  Matrix<float> load_, trial_;
};

}  // namespace

std::vector<int32_t> change_replicas(const LayerTask& task, std::vector<int32_t> placement,
                                     std::span<const float> demand, float reluctance,
                                     int64_t max_changes) {
  return ReplicaChanger(task, std::move(placement), demand).run(reluctance, max_changes);
}

}  // namespace trimtab
