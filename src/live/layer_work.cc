// SPDX-License-Identifier: Apache-2.0
#include "live/layer_work.h"

#include <algorithm>

#include "base/cat.h"
#include "live/rounds.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

void check(std::span<const Move> moves, SlotRanges slots) {
  const auto exists = [&](int32_t slot) { return 0 <= slot && slot < slots.num_slots(); };
  std::vector<bool> gets(slots.num_slots());
  for (const Move& move : moves) {
    if (move.layer < 0 || move.layer != moves.front().layer) {
      throw InvalidArgument(
          cat("moves of layers ", moves.front().layer, " and ", move.layer, " together"));
    }
    if (!exists(move.slot) || !exists(move.from_slot)) {
      throw InvalidArgument(cat("a move from slot ", move.from_slot, " to slot ", move.slot,
                                "; there are ", slots.num_slots()));
    }
    if (gets[move.slot]) throw InvalidArgument(cat("slot ", move.slot, " gets two experts"));
    gets[move.slot] = true;
  }
}

void add_moves(std::span<const Move> moves, SlotRanges slots, int rank, LayerWork& work) {
  using How = LayerWork::How;
  const int first = slots.first(rank);
  const auto is_here = [&](int32_t slot) { return first <= slot && slot < slots.end(rank); };
  // Slots of this rank that give up what they hold, and whose block is still to be had.
  std::vector<bool> gives(slots.count(rank));
  for (const Move& move : moves) {
    if (is_here(move.slot)) gives[move.slot - first] = true;
  }
  for (const Move& move : moves) {
    if (!is_here(move.slot)) continue;
    ExpertSlots::BlockChange block = {.slot = move.slot - first};
    How how = How::kReceive;
    if (is_here(move.from_slot)) {
      const int from = move.from_slot - first;
      how = gives[from] ? How::kTakeBlock : How::kCopy;
      gives[from] = false;
      if (how == How::kTakeBlock) block.from_slot = from;
    }
    if (how != How::kTakeBlock) block.from_spare = work.spares++;
    work.moves.push_back(move);
    work.blocks.push_back(block);
    work.how.push_back(how);
  }
}

void add_rounds(std::span<const Move> moves, SlotRanges slots, int rank, LayerWork& work) {
  std::vector<Route> routes;
  std::vector<const Move*> sent;
  for (const Move& move : moves) {
    const Route route = {slots.rank_of(move.from_slot), slots.rank_of(move.slot)};
    if (route.from == route.to) continue;
    routes.push_back(route);
    sent.push_back(&move);
  }
  const std::vector<int32_t> round_of = rounds(routes, slots.num_ranks());
  if (round_of.empty()) return;
  work.rounds.resize(*std::ranges::max_element(round_of) + int64_t{1});
  for (size_t r = 0; r < routes.size(); ++r) {
    LayerWork::Round& round = work.rounds[round_of[r]];
    if (routes[r].from == rank) {
      round.send_slot = sent[r]->from_slot - slots.first(rank);
      round.to = routes[r].to;
    }
    if (routes[r].to == rank) {
      const auto move = std::ranges::find(work.moves, sent[r]->slot, &Move::slot);
      round.receive = static_cast<int>(move - work.moves.begin());
    }
  }
}

}  // namespace

LayerWork layer_work(std::span<const Move> moves, SlotRanges slots, int rank) {
  LayerWork work;
  if (moves.empty()) return work;
  check(moves, slots);
  work.layer = moves.front().layer;
  add_moves(moves, slots, rank, work);
  add_rounds(moves, slots, rank, work);
  return work;
}

std::vector<int> spares_needed(std::span<const Move> moves, std::span<const int32_t> first_slots) {
  const SlotRanges slots(first_slots);
  std::vector<int> needed;
  for (int rank = 0; rank < slots.num_ranks(); ++rank) {
    needed.push_back(layer_work(moves, slots, rank).spares);
  }
  return needed;
}

}  // namespace trimtab
