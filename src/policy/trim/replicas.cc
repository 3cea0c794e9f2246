// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/replicas.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <set>
#include <utility>

#include "base/portable_math.h"
#include "policy/layer_placement.h"

namespace trimtab {

std::vector<float> expert_demand(const Episodes& episodes, float volatility) {
  std::vector<float> demand(episodes.num_experts);
  for (int e = 0; e < episodes.num_experts; ++e) {
    const std::span<const float> share = episodes.of(e);
    float mean = 0;
    for (int k = 0; k < episodes.count; ++k) mean += episodes.weight[k] * share[k];
    float variance = 0;
    for (int k = 0; k < episodes.count; ++k) {
      variance += episodes.weight[k] * ((share[k] - mean) * (share[k] - mean));
    }
    demand[e] = mean + volatility * std::sqrt(variance);
  }
  return demand;
}

std::vector<int32_t> choose_replicas(const LayerTask& task, std::span<const float> demand) {
  std::vector<int32_t> replicas(demand.size(), task.min_replicas());
  spend_slots(task, demand, std::numeric_limits<float>::infinity(), replicas);
  return replicas;
}

bool spend_slots(const LayerTask& task, std::span<const float> demand, float largest,
                 std::vector<int32_t>& replicas) {
  struct Wish {
    float load;
    int32_t expert;
    bool operator<(const Wish& other) const {
      return load != other.load ? load < other.load : expert > other.expert;
    }
  };
  std::priority_queue<Wish> wishes;
  const int most = task.max_replicas();
  const auto wish = [&](int32_t e) {
    const float load = share_of(demand[e], replicas[e] + task.full_total);
    if (replicas[e] < most && load <= largest) wishes.push({load, e});
  };
  for (int32_t e = 0; e < task.num_experts; ++e) wish(e);
  int64_t left = task.num_slots() - std::accumulate(replicas.begin(), replicas.end(), int64_t{0});
  for (; left > 0 && !wishes.empty(); --left) {
    const int32_t e = wishes.top().expert;
    wishes.pop();
    ++replicas[e];
    wish(e);
  }
  return left == 0;
}

namespace {

// Puts replicas on ranks one by one.
class Filler {
 public:
  Filler(const LayerTask& task, std::span<const int32_t> replicas)
      : task_(task),
        episodes_(task.episodes->count),
        replicas_(replicas),
        used_(task.num_ranks(), 0),
        on_rank_(task.num_ranks(), task.num_experts, 0),
        potential_(task.num_ranks(), episodes_, 1.0F),
        scale_(task.episodes->weight),
        growth_(episodes_),
        placement_(task.num_slots(), -1) {
    for (int r = 0; r < task.num_ranks(); ++r) enter(r);
  }

  void place(int32_t expert) {
    const std::span<const float> share = task_.episodes->of(expert);
    const float inverse = share_of(kSharpness, replicas_[expert] + task_.full_total);
    for (int k = 0; k < episodes_; ++k) growth_[k] = coarse_exp(share[k] * inverse);
    const int best = episodes_ == 1 ? lightest(expert) : least_growth(expert);
    put(best < 0 ? free_a_slot(expert) : best, expert);
  }

  std::vector<int32_t> take() { return std::move(placement_); }

 private:
  static constexpr float kSharpness = 8;

  int free_slots(int rank) const { return task_.slots.count(rank) - used_[rank]; }
  bool holds(int rank, int32_t expert) const { return on_rank_(rank, expert) != 0; }
  int32_t& slot(int rank, int index) { return placement_[task_.slots.first(rank) + index]; }

  // The rank that can take the expert and whose potential grows least; -1 when there is none.
  int least_growth(int32_t expert) {
    int best = -1;
    float best_score = 0;
    for (int r = 0; r < task_.num_ranks(); ++r) {
      if (free_slots(r) == 0 || holds(r, expert)) continue;
      const float score = growth(r);
      if (best < 0 || score < best_score) {
        best = r;
        best_score = score;
      }
    }
    return best;
  }
  // The same with one episode.
  int lightest(int32_t expert) {
    const auto found =
        std::ranges::find_if(open_, [&](const auto& open) { return !holds(open.second, expert); });
    return found == open_.end() ? -1 : found->second;
  }
  // Every change of a rank's slots or potential stands between these two calls.
  void leave(int rank) { open_.erase({potential_(rank, 0), rank}); }
  void enter(int rank) {
    if (episodes_ == 1 && free_slots(rank) > 0) open_.insert({potential_(rank, 0), rank});
  }

  float growth(int rank) const {
    const float* potential = potential_[rank].data();
    float sum = 0;
    for (int k = 0; k < episodes_; ++k) sum += scale_[k] * (potential[k] * (growth_[k] - 1.0F));
    return sum;
  }

  void put(int rank, int32_t expert) {
    leave(rank);
    slot(rank, used_[rank]++) = expert;
    on_rank_(rank, expert) = 1;
    float* potential = potential_[rank].data();
    for (int k = 0; k < episodes_; ++k) potential[k] *= growth_[k];
    enter(rank);
  }

  // Every rank with a free slot holds `expert` already: moves another expert there from a rank that
  // does not hold it, and returns that rank.
  int free_a_slot(int32_t expert) {
    for (int full = 0; full < task_.num_ranks(); ++full) {
      if (holds(full, expert) || task_.slots.count(full) == 0) continue;
      for (int open = 0; open < task_.num_ranks(); ++open) {
        if (free_slots(open) == 0) continue;
        for (int s = 0; s < task_.slots.count(full); ++s) {
          const int32_t other = slot(full, s);
          if (holds(open, other)) continue;
          leave(open);
          slot(open, used_[open]++) = other;
          enter(open);
          on_rank_(open, other) = 1;
          on_rank_(full, other) = 0;
          slot(full, s) = slot(full, --used_[full]);
          return full;
        }
      }
    }
    // Ranks of very different sizes can leave no such pair: then a duplicate is forced.
    int open = 0;
    while (free_slots(open) == 0) ++open;
    return open;
  }

  const LayerTask& task_;
  const int episodes_;
  std::span<const int32_t> replicas_;
  std::vector<int> used_;                 // [ranks] slots filled so far
  Matrix<uint8_t> on_rank_;               // [ranks, experts]
  Matrix<float> potential_;               // [ranks, episodes]
  std::vector<float> scale_;              // [episodes]
  std::vector<float> growth_;             // [episodes] exp(b v) of the expert in hand
  std::set<std::pair<float, int>> open_;  // with one episode: ranks with free slots, by potential
  std::vector<int32_t> placement_;
};

// Experts by falling demand of one replica.
std::vector<int32_t> by_replica_size(const LayerTask& task, std::span<const int32_t> replicas,
                                     std::span<const float> demand) {
  const auto size = [&](int32_t e) { return share_of(demand[e], replicas[e] + task.full_total); };
  return sorted_ids(task.num_experts, [&](int32_t a, int32_t b) { return size(a) > size(b); });
}

}  // namespace

std::vector<int32_t> first_placement(const LayerTask& task, std::span<const int32_t> replicas,
                                     std::span<const float> demand) {
  Filler filler(task, replicas);
  for (const int32_t e : by_replica_size(task, replicas, demand)) {
    for (int32_t i = 0; i < replicas[e]; ++i) filler.place(e);
  }
  return filler.take();
}

std::vector<int32_t> paired_placement(const LayerTask& task, std::span<const int32_t> replicas,
                                      std::span<const float> demand) {
  for (int r = 0; r < task.num_ranks(); ++r) {
    if (task.slots.count(r) != 2) return {};
  }
  std::vector<int32_t> items;
  for (const int32_t e : by_replica_size(task, replicas, demand)) {
    items.insert(items.end(), replicas[e], e);
  }
  const int64_t pairs = std::ssize(items) / 2;
  std::vector<int32_t> placement;
  for (int64_t i = 0; i < pairs; ++i) {
    placement.push_back(items[i]);
    placement.push_back(items[std::ssize(items) - 1 - i]);
  }
  for (int64_t i = 0; i < pairs; ++i) {
    if (placement[2 * i] != placement[2 * i + 1]) continue;
    const int32_t twice = placement[2 * i];
    // The nearest pair without this expert takes it, so that loads change least.
    for (int64_t distance = 1; distance < pairs; ++distance) {
      int64_t other = -1;
      for (const int64_t j : {i - distance, i + distance}) {
        if (j < 0 || j >= pairs) continue;
        if (placement[2 * j] != twice && placement[2 * j + 1] != twice) other = j;
      }
      if (other < 0) continue;
      std::swap(placement[2 * i + 1], placement[2 * other + 1]);
      break;
    }
  }
  return placement;
}

}  // namespace trimtab
