// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/searched_slots.h"

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
  LayerTask task{.num_experts = current_.num_experts(),
                 .episodes = &episodes,
                 .slots = slots(),
                 .full = full_,
                 .full_total = full_total_,
                 .held = Matrix<uint8_t>(current_.num_ranks(), current_.num_experts(), 0),
                 .move_price = static_cast<float>(move_price)};
  const SlotRanges all(current_.first_slots());
  for (int r = 0; r < all.num_ranks(); ++r) {
    for (const int32_t e : all.of(r, current_.logical(layer))) task.held(r, e) = 1;
  }
  return task;
}

std::vector<int32_t> SearchedSlots::complete(std::span<const int32_t> searched) const {
  std::vector<int32_t> placement;
  for (int r = 0; r < slots().num_ranks(); ++r) {
    const std::span<const int32_t> on_rank = slots().of(r, searched);
    placement.insert(placement.end(), on_rank.begin(), on_rank.end());
    for (int32_t set = 0; set < full_[r]; ++set) {
      for (int32_t e = 0; e < current_.num_experts(); ++e) placement.push_back(e);
    }
  }
  return placement;
}

}  // namespace trimtab
