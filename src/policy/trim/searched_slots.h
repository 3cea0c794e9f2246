// SPDX-License-Identifier: Apache-2.0
// SearchedSlots says which slots of a placement trim searches. It turns a Problem's layer into a
// LayerTask, and what was found for the task into a placement of the layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/layer_task.h"
#include "trimtab/placement.h"

namespace trimtab {

class SearchedSlots {
 public:
  // `current` must outlive this.
  explicit SearchedSlots(const Placement& current);

  // The task of one layer. This and the episodes must outlive it.
  LayerTask task(int layer, const Episodes& episodes, double move_price) const;

  // The experts in the searched slots of a layer now. Empty where some ranks are full, since then
  // it is open which of a rank's replicas count as searched.
  std::span<const int32_t> current(int layer) const {
    return full_total_ == 0 ? current_.logical(layer) : std::span<const int32_t>();
  }

  // The whole placement of a layer [slots]: of each rank first what was searched, then what it
  // holds for certain.
  std::vector<int32_t> complete(std::span<const int32_t> searched) const;

  // The searched slots of each rank.
  SlotRanges slots() const { return SlotRanges(first_); }

 private:
  const Placement& current_;
  std::vector<int32_t> first_;  // [ranks + 1] of the searched slots
  std::vector<int32_t> full_;   // [ranks] replicas of every expert that a rank holds for certain
  int32_t full_total_ = 0;
};

}  // namespace trimtab
