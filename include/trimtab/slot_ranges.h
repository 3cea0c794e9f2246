// SPDX-License-Identifier: Apache-2.0
// Which slots each rank owns. Slots are numbered rank by rank, so the slots of a rank are a range.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <span>

#include "trimtab/table.h"

namespace trimtab {

// A view of the first slot of each rank and, last, the number of all slots: [ranks + 1], ascending.
// It owns nothing: whoever made the numbers keeps them alive.
class SlotRanges {
 public:
  SlotRanges() = default;
  SlotRanges(std::span<const int32_t> firsts) : firsts_(firsts) {}  // NOLINT: implicit

  int num_ranks() const { return firsts_.empty() ? 0 : static_cast<int>(firsts_.size()) - 1; }
  int num_slots() const { return firsts_.empty() ? 0 : firsts_.back(); }
  // Rank r owns the slots [first(r), end(r)).
  int first(int rank) const { return at(rank); }
  int end(int rank) const { return at(rank + 1); }
  int count(int rank) const { return at(rank + 1) - at(rank); }
  // The rank that owns a slot, 0 <= slot < num_slots().
  int rank_of(int slot) const {
    assert(0 <= slot && slot < num_slots());
    const auto next = std::upper_bound(firsts_.begin(), firsts_.end(), slot);
    return static_cast<int>(next - firsts_.begin()) - 1;
  }
  // The part of an array [slots] that belongs to a rank.
  template <class T>
  std::span<T> of(int rank, std::span<T> slots) const {
    return slots.subspan(cells(first(rank)), cells(count(rank)));
  }
  std::span<const int32_t> firsts() const { return firsts_; }

 private:
  int32_t at(int rank) const {
    assert(0 <= rank && rank <= num_ranks());
    return firsts_[cells(rank)];
  }

  std::span<const int32_t> firsts_;
};

}  // namespace trimtab
