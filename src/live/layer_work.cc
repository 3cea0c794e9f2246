// SPDX-License-Identifier: Apache-2.0
#include "live/layer_work.h"

#include <algorithm>

#include "base/cat.h"
#include "live/rounds.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

void check(std::span<const Transfer> transfers, std::span<const int32_t> first_slots) {
  std::vector<bool> gets(first_slots.back());
  for (const Transfer& t : transfers) {
    if (t.layer < 0 || t.layer != transfers.front().layer) {
      throw InvalidArgument(
          cat("transfers of layers ", transfers.front().layer, " and ", t.layer, " together"));
    }
    if (t.slot < 0 || t.slot >= first_slots.back() || t.from_slot < 0 ||
        t.from_slot >= first_slots.back()) {
      throw InvalidArgument(cat("a transfer from slot ", t.from_slot, " to slot ", t.slot,
                                "; there are ", first_slots.back()));
    }
    if (gets[t.slot]) throw InvalidArgument(cat("slot ", t.slot, " gets two experts"));
    gets[t.slot] = true;
  }
}

int rank_of(int32_t slot, std::span<const int32_t> first_slots) {
  return static_cast<int>(std::ranges::upper_bound(first_slots, slot) - first_slots.begin()) - 1;
}

void add_changes(std::span<const Transfer> transfers, std::span<const int32_t> first_slots,
                 int rank, LayerWork& work) {
  const int32_t first = first_slots[rank];
  // Slots of this rank that give up what they hold, and whose block is still to be had.
  std::vector<bool> gives(first_slots[rank + 1] - first);
  const auto is_here = [&](int32_t slot) {
    return slot >= first && slot < first + std::ssize(gives);
  };
  for (const Transfer& t : transfers) {
    if (is_here(t.slot)) gives[t.slot - first] = true;
  }
  for (const Transfer& t : transfers) {
    if (!is_here(t.slot)) continue;
    SlotChange c{
        t, SlotChange::How::kReceive, rank_of(t.from_slot, first_slots), {.slot = t.slot - first}};
    if (c.from_rank == rank) {
      const int from = t.from_slot - first;
      c.how = gives[from] ? SlotChange::How::kMove : SlotChange::How::kCopy;
      gives[from] = false;
      if (c.how == SlotChange::How::kMove) c.change.from_slot = from;
    }
    if (c.how != SlotChange::How::kMove) c.change.from_spare = work.spares++;
    work.changes.push_back(c);
  }
}

void add_rounds(std::span<const Transfer> transfers, std::span<const int32_t> first_slots, int rank,
                LayerWork& work) {
  std::vector<Route> routes;
  std::vector<const Transfer*> sent;
  for (const Transfer& t : transfers) {
    const Route route = {rank_of(t.from_slot, first_slots), rank_of(t.slot, first_slots)};
    if (route.from == route.to) continue;
    routes.push_back(route);
    sent.push_back(&t);
  }
  const std::vector<int32_t> round_of = rounds(routes, static_cast<int>(first_slots.size()) - 1);
  if (round_of.empty()) return;
  work.rounds.resize(static_cast<size_t>(*std::ranges::max_element(round_of)) + 1);
  for (size_t r = 0; r < routes.size(); ++r) {
    LayerWork::Round& round = work.rounds[round_of[r]];
    if (routes[r].from == rank) {
      round.send_slot = sent[r]->from_slot - first_slots[rank];
      round.to = routes[r].to;
    }
    if (routes[r].to == rank) {
      const auto change = std::ranges::find(work.changes, sent[r]->slot,
                                            [](const SlotChange& c) { return c.transfer.slot; });
      round.receive = static_cast<int>(change - work.changes.begin());
    }
  }
}

}  // namespace

LayerWork layer_work(std::span<const Transfer> transfers, std::span<const int32_t> first_slots,
                     int rank) {
  LayerWork work;
  if (transfers.empty()) return work;
  check(transfers, first_slots);
  work.layer = transfers.front().layer;
  add_changes(transfers, first_slots, rank, work);
  add_rounds(transfers, first_slots, rank, work);
  return work;
}

std::vector<int> spares_needed(std::span<const Transfer> transfers,
                               std::span<const int32_t> first_slots) {
  std::vector<int> needed;
  for (int rank = 0; rank + 1 < std::ssize(first_slots); ++rank) {
    needed.push_back(layer_work(transfers, first_slots, rank).spares);
  }
  return needed;
}

}  // namespace trimtab
