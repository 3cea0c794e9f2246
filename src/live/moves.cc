// SPDX-License-Identifier: Apache-2.0
// Decides which slot each expert of a new placement comes from.
#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/migrator.h"

namespace trimtab {
namespace {

class Sources {
 public:
  Sources(const Placement& from, const Placement& to, int layer, const Topology& topology)
      : placement_(from), topology_(topology), holders_(from.num_experts()) {
    const auto before = from.logical(layer), after = to.logical(layer);
    for (int32_t slot = 0; slot < from.num_slots(); ++slot) {
      holders_[before[slot]].push_back(slot);
      gives_up_.push_back(before[slot] != after[slot]);
    }
    sent_.resize(from.num_ranks());
  }

  // -1: nowhere on the slot's own rank. A slot that gives the expert up gives its block, once,
  // without a copy.
  int32_t on_own_rank(int32_t slot, int32_t expert) {
    const int rank = placement_.rank_of_slot(slot);
    int32_t found = -1;
    for (const int32_t holder : holders(expert)) {
      if (placement_.rank_of_slot(holder) != rank) continue;
      if (gives_up_[holder]) {
        gives_up_[holder] = false;
        return holder;
      }
      if (found < 0) found = holder;
    }
    return found;
  }

  int32_t on_another_rank(int32_t slot, int32_t expert) {
    const auto cost = [&](int32_t holder) { return std::pair(far(holder, slot), sent(holder)); };
    const int32_t best = *std::ranges::min_element(holders(expert), {}, cost);
    ++sent(best);
    return best;
  }

  // Takes a move from a rank that sends at least two more than another rank could that is as near.
  // True if it did.
  bool relieve(int32_t slot, int32_t expert, int32_t& source) {
    for (const int32_t holder : holders(expert)) {
      if (far(holder, slot) != far(source, slot) || sent(holder) + 2 > sent(source)) continue;
      --sent(source);
      ++sent(holder);
      source = holder;
      return true;
    }
    return false;
  }

  size_t num_holders(int32_t expert) const { return holders_[expert].size(); }

 private:
  const std::vector<int32_t>& holders(int32_t expert) const { return holders_[expert]; }
  bool far(int32_t a, int32_t b) const {
    return topology_.node(placement_.rank_of_slot(a)) != topology_.node(placement_.rank_of_slot(b));
  }
  int64_t& sent(int32_t slot) { return sent_[placement_.rank_of_slot(slot)]; }

  const Placement& placement_;
  const Topology& topology_;
  std::vector<std::vector<int32_t>> holders_;  // [experts] slots, ascending
  std::vector<bool> gives_up_;                 // [slots] and nobody on the rank has taken its block
  std::vector<int64_t> sent_;                  // [ranks]
};

void check(const Placement& from, const Placement& to, const Topology& topology) {
  if (!std::ranges::equal(from.first_slots(), to.first_slots()) ||
      from.num_layers() != to.num_layers() || from.num_experts() != to.num_experts()) {
    throw InvalidArgument(cat("moves between placements of ", from.num_layers(), " layers, ",
                              from.num_experts(), " experts, ", from.num_slots(), " slots and ",
                              to.num_layers(), ", ", to.num_experts(), ", ", to.num_slots(),
                              " or other slots per rank"));
  }
  if (!topology.node_of_rank.empty() && std::ssize(topology.node_of_rank) != from.num_ranks()) {
    throw InvalidArgument(cat("moves: nodes of ", topology.node_of_rank.size(), " ranks for ",
                              from.num_ranks(), " ranks"));
  }
}

}  // namespace

std::vector<Move> plan_moves(const Placement& from, const Placement& to, int layer,
                             const Topology& topology) {
  check(from, to, topology);
  const auto before = from.logical(layer), after = to.logical(layer);
  Sources sources(from, to, layer, topology);
  std::vector<Move> moves;
  std::vector<int64_t> from_others;  // moves whose source is on another rank
  for (int32_t slot = 0; slot < from.num_slots(); ++slot) {
    if (before[slot] == after[slot]) continue;
    const int32_t source = sources.on_own_rank(slot, after[slot]);
    if (source < 0) from_others.push_back(std::ssize(moves));
    moves.push_back({layer, slot, after[slot], source});
  }
  std::ranges::stable_sort(from_others, {},
                           [&](int64_t t) { return sources.num_holders(moves[t].expert); });
  for (const int64_t t : from_others) {
    moves[t].from_slot = sources.on_another_rank(moves[t].slot, moves[t].expert);
  }
  const auto relieve = [&](int64_t t) {
    return sources.relieve(moves[t].slot, moves[t].expert, moves[t].from_slot);
  };
  while (std::ranges::any_of(from_others, relieve)) {
  }
  return moves;
}

}  // namespace trimtab
