// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/copies.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <set>
#include <utility>

#include "base/portable_math.h"
#include "trimtab/table.h"

namespace trimtab {

std::vector<float> expert_demand(const Episodes& episodes, float volatility) {
  std::vector<float> demand(episodes.num_experts);
  for (int e = 0; e < episodes.num_experts; ++e) {
    const std::span<const float> share = episodes.of(e);
    float mean = 0;
    for (size_t k = 0; k < share.size(); ++k) mean += episodes.weight[k] * share[k];
    float variance = 0;
    for (size_t k = 0; k < share.size(); ++k) {
      variance += episodes.weight[k] * ((share[k] - mean) * (share[k] - mean));
    }
    demand[e] = mean + volatility * std::sqrt(variance);
  }
  return demand;
}

std::vector<int32_t> choose_copies(const LayerTask& task, std::span<const float> demand) {
  std::vector<int32_t> copies(demand.size(), task.min_copies());
  spend_slots(task, demand, std::numeric_limits<float>::infinity(), copies);
  return copies;
}

bool spend_slots(const LayerTask& task, std::span<const float> demand, float largest,
                 std::vector<int32_t>& copies) {
  struct Wish {
    float load;
    int32_t expert;
    bool operator<(const Wish& other) const {
      return load != other.load ? load < other.load : expert > other.expert;
    }
  };
  std::priority_queue<Wish> wishes;
  const int most = task.max_copies();
  const auto wish = [&](size_t e) {
    const float load = demand[e] / static_cast<float>(copies[e] + task.full_total);
    if (copies[e] < most && load <= largest) wishes.push({load, static_cast<int32_t>(e)});
  };
  for (size_t e = 0; e < demand.size(); ++e) wish(e);
  int64_t left = task.num_slots() - std::accumulate(copies.begin(), copies.end(), int64_t{0});
  for (; left > 0 && !wishes.empty(); --left) {
    const auto e = static_cast<size_t>(wishes.top().expert);
    wishes.pop();
    ++copies[e];
    wish(e);
  }
  return left == 0;
}

namespace {

// Puts replicas on ranks one by one.
class Filler {
 public:
  Filler(const LayerTask& task, std::span<const int32_t> copies)
      : task_(task),
        k_(task.episodes->count),
        copies_(copies),
        used_(task.num_ranks, 0),
        on_rank_(cells(task.num_ranks, task.num_experts), false),
        potential_(static_cast<size_t>(task.num_ranks) * k_, 1.0F),
        scale_(task.episodes->weight),
        growth_(k_),
        map_(task.num_slots(), -1) {
    for (int r = 0; r < task.num_ranks; ++r) enter(r);
  }

  void place(int32_t expert) {
    const std::span<const float> share = task_.episodes->of(expert);
    const float inverse = kSharpness / static_cast<float>(copies_[expert] + task_.full_total);
    for (size_t k = 0; k < k_; ++k) growth_[k] = coarse_exp(share[k] * inverse);
    const int best = k_ == 1 ? lightest(expert) : least_growth(expert);
    put(best < 0 ? make_room(expert) : best, expert);
  }

  std::vector<int32_t> take() { return std::move(map_); }

 private:
  static constexpr float kSharpness = 8;

  int free_slots(int rank) const { return task_.slots_of(rank) - used_[rank]; }
  std::vector<bool>::reference on_rank(int rank, int32_t expert) {
    return on_rank_[cells(rank, task_.num_experts) + static_cast<size_t>(expert)];
  }
  int32_t& slot(int rank, int index) {
    return map_[static_cast<size_t>(task_.first_slots[rank] + index)];
  }

  // The rank with room for the expert whose potential grows least; -1 when there is none.
  int least_growth(int32_t expert) {
    int best = -1;
    float best_score = 0;
    for (int r = 0; r < task_.num_ranks; ++r) {
      if (free_slots(r) == 0 || on_rank(r, expert)) continue;
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
    const auto found = std::ranges::find_if(
        open_, [&](const auto& open) { return !on_rank(open.second, expert); });
    return found == open_.end() ? -1 : found->second;
  }
  // Around every change of a rank's slots or potential.
  void leave(int rank) { open_.erase({potential_[rank], rank}); }
  void enter(int rank) {
    if (k_ == 1 && free_slots(rank) > 0) open_.insert({potential_[rank], rank});
  }

  float growth(int rank) const {
    const float* potential = potential_.data() + static_cast<size_t>(rank) * k_;
    float sum = 0;
    for (size_t k = 0; k < k_; ++k) sum += scale_[k] * (potential[k] * (growth_[k] - 1.0F));
    return sum;
  }

  void put(int rank, int32_t expert) {
    leave(rank);
    slot(rank, used_[rank]++) = expert;
    on_rank(rank, expert) = true;
    float* potential = potential_.data() + static_cast<size_t>(rank) * k_;
    for (size_t k = 0; k < k_; ++k) potential[k] *= growth_[k];
    enter(rank);
  }

  // Every rank with a free slot holds `expert` already: moves another expert there from a rank that
  // does not.
  int make_room(int32_t expert) {
    for (int full = 0; full < task_.num_ranks; ++full) {
      if (on_rank(full, expert) || task_.slots_of(full) == 0) continue;
      for (int open = 0; open < task_.num_ranks; ++open) {
        if (free_slots(open) == 0) continue;
        for (int s = 0; s < task_.slots_of(full); ++s) {
          const int32_t other = slot(full, s);
          if (on_rank(open, other)) continue;
          leave(open);
          slot(open, used_[open]++) = other;
          enter(open);
          on_rank(open, other) = true;
          on_rank(full, other) = false;
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
  size_t k_;
  std::span<const int32_t> copies_;
  std::vector<int> used_;  // [ranks] slots filled so far
  std::vector<bool> on_rank_;
  std::vector<float> potential_;  // [ranks][episodes]
  std::vector<float> scale_;      // [episodes]
  std::vector<float> growth_;     // [episodes] exp(b v) of the expert in hand
  // With one episode: ranks with free slots, by potential.
  std::set<std::pair<float, int>> open_;
  std::vector<int32_t> map_;
};

// Experts by falling size of one copy.
std::vector<int32_t> by_copy_size(const LayerTask& task, std::span<const int32_t> copies,
                                  std::span<const float> demand) {
  std::vector<int32_t> order(copies.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](int32_t e) {
    const auto i = static_cast<size_t>(e);
    return demand[i] / static_cast<float>(copies[i] + task.full_total);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return size(a) > size(b); });
  return order;
}

}  // namespace

std::vector<int32_t> first_map(const LayerTask& task, std::span<const int32_t> copies,
                               std::span<const float> demand) {
  Filler filler(task, copies);
  for (const int32_t e : by_copy_size(task, copies, demand)) {
    for (int32_t c = 0; c < copies[e]; ++c) filler.place(e);
  }
  return filler.take();
}

std::vector<int32_t> paired_map(const LayerTask& task, std::span<const int32_t> copies,
                                std::span<const float> demand) {
  for (int r = 0; r < task.num_ranks; ++r) {
    if (task.slots_of(r) != 2) return {};
  }
  std::vector<int32_t> items;
  for (const int32_t e : by_copy_size(task, copies, demand)) {
    items.insert(items.end(), copies[e], e);
  }
  const size_t pairs = items.size() / 2;
  std::vector<int32_t> map;
  for (size_t i = 0; i < pairs; ++i) {
    map.push_back(items[i]);
    map.push_back(items[items.size() - 1 - i]);
  }
  for (size_t i = 0; i < pairs; ++i) {
    if (map[2 * i] != map[2 * i + 1]) continue;
    const int32_t twice = map[2 * i];
    // The nearest pair without this expert, so that loads change least.
    for (size_t distance = 1; distance < pairs; ++distance) {
      size_t other = pairs;
      for (const size_t j : {i - distance, i + distance}) {  // i - distance wraps to a large number
        if (j < pairs && map[2 * j] != twice && map[2 * j + 1] != twice) other = j;
      }
      if (other == pairs) continue;
      std::swap(map[2 * i + 1], map[2 * other + 1]);
      break;
    }
  }
  return map;
}

}  // namespace trimtab
