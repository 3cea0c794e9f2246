// SPDX-License-Identifier: Apache-2.0
// Which slots of a placement are searched, and the way from a Problem's layer to a LayerTask and
// back.
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

  LayerTask task(int layer, const Episodes& episodes, double move_price) const;

  // What the searched slots of a layer hold now; empty where some ranks are full, since then it
  // would not say which copies count as searched.
  std::span<const int32_t> current(int layer) const {
    return full_total_ == 0 ? current_.logical(layer) : std::span<const int32_t>();
  }

  // Appends the whole map of a layer: what was searched, then what is full, rank by rank.
  void append(std::span<const int32_t> searched, std::vector<int32_t>& map) const;

  int most() const;  // of one rank, at least 1

 private:
  const Placement& current_;
  std::vector<int32_t> first_;  // [ranks + 1] of the searched slots
  std::vector<int32_t> full_;   // [ranks] copies of every expert that a rank holds for certain
  int32_t full_total_ = 0;
};

}  // namespace trimtab
