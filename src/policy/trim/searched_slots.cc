// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/searched_slots.h"

#include <algorithm>
#include <numeric>

namespace trimtab {

SearchedSlots::SearchedSlots(const Placement& current) : current_(current) {
  first_.push_back(0);
  for (int r = 0; r < current.num_ranks(); ++r) {
    full_.push_back(current.slots_of_rank(r) / current.num_experts());
    first_.push_back(first_.back() + current.slots_of_rank(r) % current.num_experts());
  }
  full_total_ = std::accumulate(full_.begin(), full_.end(), int32_t{0});
}

LayerTask SearchedSlots::task(int layer, const Episodes& episodes, double move_price) const {
  const auto num_experts = static_cast<size_t>(current_.num_experts());
  LayerTask task;
  task.num_ranks = current_.num_ranks();
  task.num_experts = current_.num_experts();
  task.episodes = &episodes;
  task.first_slots = first_;
  task.full = full_;
  task.full_total = full_total_;
  task.move_price = static_cast<float>(move_price);
  task.held.assign(static_cast<size_t>(task.num_ranks) * num_experts, 0);
  for (int r = 0; r < task.num_ranks; ++r) {
    for (int s = current_.first_slot(r); s < current_.first_slot(r + 1); ++s) {
      const int32_t e = current_.logical(layer)[s];
      task.held[static_cast<size_t>(r) * num_experts + static_cast<size_t>(e)] = 1;
    }
  }
  return task;
}

void SearchedSlots::append(std::span<const int32_t> searched, std::vector<int32_t>& map) const {
  for (size_t r = 0; r + 1 < first_.size(); ++r) {
    map.insert(map.end(), searched.begin() + first_[r], searched.begin() + first_[r + 1]);
    for (int32_t copy = 0; copy < full_[r]; ++copy) {
      for (int32_t e = 0; e < current_.num_experts(); ++e) map.push_back(e);
    }
  }
}

int SearchedSlots::most() const {
  int most = 1;
  for (size_t r = 0; r + 1 < first_.size(); ++r) most = std::max(most, first_[r + 1] - first_[r]);
  return most;
}

}  // namespace trimtab
