// SPDX-License-Identifier: Apache-2.0
// For exchanges that pack tokens: where requests come with replicas, turns the logical experts of
// this rank's picks into slots, once the counts of all ranks are there (they come with the terms).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/carver.h"
#include "dispatch/collective_exchange.h"
#include "dispatch/shape.h"
#include "dispatch/share_out.h"
#include "trimtab/dispatcher.h"

namespace trimtab {

class ReplicaChoice {
 public:
  // Nothing where the shape has no num_experts.
  struct Memory {
    ShareOut::Memory share_out;
    std::span<int32_t> left;  // [slots] this rank's shares, as they are used up
  };
  // terms: gets the memory for the counts.
  static Memory plan(Carver& carver, const RankShape& shape,
                     CollectiveExchange::TermsMemory& terms) {
    const Memory memory{
        .share_out = ShareOut::plan(carver, shape),
        .left = carver.take<int32_t>(shape.num_experts > 0 ? shape.num_slots() : 0)};
    terms.counts = memory.share_out.counts;
    return memory;
  }
  // What choose() takes from the lane's workspace and gives back.
  static size_t later_bytes(const RankShape& shape) { return ShareOut::later_bytes(shape); }

  ReplicaChoice(const Request& request, Lane& lane, const Memory& memory)
      : m_(memory), share_out_(request, lane, memory.share_out), request_(request) {}

  // Does the request come with replicas? If not, all is chosen from the beginning.
  bool on() const { return share_out_.on(); }
  // Once the counts are there. rows_of_rank: [ranks] receives the rows that each rank gets.
  void choose(int rank, std::span<int64_t> rows_of_rank) {
    share_out_.compute();
    split_rank_loads(share_out_.table(), share_out_.shares(), rows_of_rank);
    const std::span<int32_t> slots = share_out_.slots().first(request_.ids.size());
    std::ranges::copy(request_.ids, slots.begin());
    std::ranges::copy(share_out_.shares_of(rank), m_.left.begin());
    assign_slots(share_out_.table(), m_.left, slots);
    request_.ids = slots;
  }
  // The request with the ids of slots.
  const Request& request() const { return request_; }

 private:
  const Memory m_;
  const ShareOut share_out_;
  Request request_;
};

}  // namespace trimtab
