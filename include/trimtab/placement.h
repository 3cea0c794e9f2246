// SPDX-License-Identifier: Apache-2.0
// A Placement says where each logical expert lives: for every layer, which logical expert each slot
// (physical expert) holds; slots are numbered rank by rank. It is one immutable value with a
// version. The expert map, log2phy and slot views that engines keep apart are all read from it, so
// they can't disagree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab {

// Immutable; may be read by any number of threads. A layer, rank or slot out of range is an
// InvalidArgument, but for first_slot and slots_of_rank, which are unchecked.
class Placement {
 public:
  // slots_per_rank: [ranks], each >= 0. logical: [layers][slots of all ranks], ids in [0,
  // num_experts). Throws InvalidArgument when an id is out of range or a logical expert of some
  // layer has no slot.
  Placement(int num_layers, int num_experts, std::vector<int> slots_per_rank,
            std::vector<int32_t> logical, uint64_t version = 0);

  // Makes a placement of the same slots with other experts. Throws as the constructor.
  Placement with(std::vector<int32_t> logical, uint64_t version) const;

  // Experts in order, no replicas; where ranks do not divide experts, the first ranks hold one
  // more. More ranks than experts is fine: the last ones have no slot.
  static Placement linear(int num_layers, int num_experts, int num_ranks);

  int num_layers() const { return num_layers_; }
  int num_experts() const { return num_experts_; }
  int num_ranks() const { return static_cast<int>(first_slot_.size()) - 1; }
  int num_slots() const { return first_slot_.back(); }
  int slots_of_rank(int rank) const { return first_slot(rank + 1) - first_slot(rank); }
  // [ranks + 1]; rank r owns the slots [first_slot(r), first_slot(r + 1)).
  int first_slot(int rank) const { return first_slot_[rank]; }
  std::span<const int32_t> first_slots() const { return first_slot_; }
  int rank_of_slot(int slot) const;

  // [layers][slots]: the logical expert in each slot.
  std::span<const int32_t> logical() const { return logical_; }
  // [num_slots]: the same of one layer.
  std::span<const int32_t> logical(int layer) const;
  // [num_experts]: one slot of each logical expert, as seen from `rank`: its own (the first, if it
  // has several); else the expert's slots are dealt round robin to the ranks that have none, so
  // that no slot serves two more of them than another. The deal starts at another slot for each
  // expert, so that low slots are not always the ones served more.
  std::vector<int32_t> log2phy(int layer, int rank) const;

  uint64_t version() const { return version_; }

 private:
  int num_layers_;
  int num_experts_;
  std::vector<int32_t> first_slot_;  // [ranks + 1]
  std::vector<int32_t> logical_;     // [layers][slots]
  uint64_t version_;
};

}  // namespace trimtab
