// SPDX-License-Identifier: Apache-2.0
// Sharing the picks of logical experts out over their replicas, inside an exchange: once it has the
// counts of all ranks, every rank computes what each rank sends to each slot.
#pragma once

#include <cstdint>
#include <span>

#include "base/carver.h"
#include "dispatch/shape.h"
#include "trimtab/dispatcher.h"
#include "trimtab/table.h"
#include "trimtab/workspace.h"

namespace trimtab {

class ShareOut {
 public:
  // Nothing where the shape has no num_experts.
  struct Memory {
    std::span<int32_t> counts;  // [ranks, experts]
    std::span<int32_t> shares;  // [ranks, slots]
    std::span<int32_t> slots;   // [max_tokens, top_k]
  };
  static Memory plan(Carver& carver, const RankShape& shape) {
    const int64_t some = shape.num_experts > 0 ? 1 : 0;
    return {.counts = carver.take<int32_t>(int64_t{shape.ranks} * shape.num_experts),
            .shares = carver.take<int32_t>(some * shape.ranks * shape.num_slots()),
            .slots = carver.take<int32_t>(some * shape.max_tokens * shape.top_k)};
  }
  // What compute() takes from the lane's workspace and gives back.
  static size_t later_bytes(const RankShape& shape) {
    return shape.num_experts > 0
               ? split_workspace_bytes(shape.ranks, shape.num_experts, shape.num_slots())
               : 0;
  }

  ShareOut(const Request& request, Lane& lane, const Memory& memory)
      : replicas_(request.replicas), workspace_(lane.workspace), m_(memory) {}

  // Does the request come with replicas? The rest is for those that do.
  bool on() const { return replicas_.table != nullptr; }
  const SplitTable& table() const { return *replicas_.table; }
  // [ranks, experts] picks of each rank for each logical expert: to be filled in, then shared out
  // by compute().
  std::span<int32_t> counts() const { return m_.counts; }
  void compute() const {
    split_tokens(replicas_.rule, table(), m_.counts, workspace_, m_.shares, replicas_.cost);
  }
  // [ranks, slots] picks that each rank sends to each slot.
  std::span<const int32_t> shares() const { return m_.shares; }
  // [slots] those of one rank.
  std::span<int32_t> shares_of(int rank) const { return Table(m_.shares, table().num_slots)[rank]; }
  // [tokens, top_k] the slots of this rank's picks, to be filled in.
  std::span<int32_t> slots() const { return m_.slots; }

 private:
  const Replicas replicas_;
  Workspace& workspace_;
  const Memory m_;
};

}  // namespace trimtab
