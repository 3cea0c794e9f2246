// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "live/testing.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

struct Case {
  Case(unsigned seed, bool several_nodes) : random(seed) {
    const int ranks = 1 + static_cast<int>(random() % 7);
    std::vector<int> slots(ranks);
    for (int& s : slots) s = static_cast<int>(random() % 6);
    slots[random() % slots.size()] += 2;
    const int num_slots = std::accumulate(slots.begin(), slots.end(), 0);
    const int experts = 1 + static_cast<int>(random() % static_cast<unsigned>(num_slots));
    from = std::make_unique<Placement>(random_placement(1, experts, slots, random));
    to = std::make_unique<Placement>(random_placement(1, experts, slots, random));
    for (int r = 0; several_nodes && r < ranks; ++r)
      topology.node_of_rank.push_back(static_cast<int>(random() % 3));
    moves = plan_moves(*from, *to, 0, topology);
  }
  int rank(int32_t slot) const { return from->rank_of_slot(slot); }
  int node(int32_t slot) const { return topology.node(rank(slot)); }

  std::mt19937 random;
  std::unique_ptr<Placement> from, to;
  Topology topology;
  std::vector<Move> moves;
};

TEST(Moves, EverySlotThatChangesHasOneFromTheNearestHolder) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    const Case c(seed, seed % 2 == 0);
    const auto before = c.from->logical(0), after = c.to->logical(0);
    auto next = c.moves.begin();
    std::map<int, int> sent;
    for (int32_t slot = 0; slot < c.from->num_slots(); ++slot) {
      const auto s = static_cast<size_t>(slot);
      if (before[s] == after[s]) continue;
      ASSERT_NE(next, c.moves.end());
      const Move t = *next++;
      ASSERT_EQ(t, (Move{0, slot, after[s], t.from_slot}));
      ASSERT_EQ(before[t.from_slot], t.expert);
      bool on_rank = false, on_node = false;
      for (int32_t h = 0; h < c.from->num_slots(); ++h) {
        if (before[h] != t.expert) continue;
        on_rank = on_rank || c.rank(h) == c.rank(slot);
        on_node = on_node || c.node(h) == c.node(slot);
      }
      ASSERT_EQ(c.rank(t.from_slot) == c.rank(slot), on_rank);
      ASSERT_EQ(c.node(t.from_slot) == c.node(slot), on_node);
      if (!on_rank) ++sent[c.rank(t.from_slot)];
    }
    ASSERT_EQ(next, c.moves.end());
    // Nobody sends what one as near could send that sends two less.
    for (const Move& t : c.moves) {
      if (c.rank(t.from_slot) == c.rank(t.slot)) continue;
      for (int32_t h = 0; h < c.from->num_slots(); ++h) {
        if (before[h] != t.expert) continue;
        if ((c.node(h) == c.node(t.slot)) != (c.node(t.from_slot) == c.node(t.slot))) continue;
        ASSERT_LE(sent[c.rank(t.from_slot)], sent[c.rank(h)] + 1);
      }
    }
  }
}

TEST(Moves, AreSharedOutOverTheSenders) {
  // Four ranks hold both experts 0 and 1; four others get one of them each.
  const std::vector<int> slots = {2, 2, 2, 2, 1, 1, 1, 1};
  const Placement from(1, 6, slots, {0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 4, 5});
  const Placement to(1, 6, slots, {0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 0, 1});
  std::map<int, int> sent;
  for (const Move& t : plan_moves(from, to, 0)) ++sent[from.rank_of_slot(t.from_slot)];
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(sent[rank], 1) << rank;
}

// The rank that alone holds expert 1 is not asked for expert 0, though it comes first.
TEST(Moves, LeaveRoomForWhatOnlyOneRankHas) {
  const std::vector<int> slots = {2, 1, 1, 1};
  const Placement from(1, 4, slots, {0, 1, 0, 2, 3});
  const Placement to(1, 4, slots, {2, 3, 0, 0, 1});
  const auto moves = plan_moves(from, to, 0);
  ASSERT_EQ(moves.size(), 4U);
  EXPECT_EQ(moves[2], (Move{0, 3, 0, 2}));
  EXPECT_EQ(moves[3], (Move{0, 4, 1, 1}));
}

TEST(Moves, SlotsOfOneRankTradeWithoutSpares) {
  const Placement from(1, 5, {3, 2}, {0, 1, 2, 3, 4});
  const std::vector<int32_t> first(from.first_slots().begin(), from.first_slots().end());
  const auto spares = [&](std::vector<int32_t> to) {
    return spares_needed(plan_moves(from, Placement(1, 5, {3, 2}, std::move(to)), 0), first);
  };
  EXPECT_EQ(spares({1, 2, 0, 4, 3}), (std::vector<int>{0, 0}));
  EXPECT_EQ(spares({3, 1, 2, 0, 4}), (std::vector<int>{1, 1}));
  const Placement twice(1, 2, {3}, {0, 1, 1});
  // 0 is copied once: its own block can go to one slot only.
  EXPECT_EQ(spares_needed(plan_moves(twice, Placement(1, 2, {3}, {1, 0, 0}), 0),
                          std::vector<int32_t>{0, 3}),
            std::vector<int>{1});
}

TEST(Moves, SparesAreWhatComesFromOthersAndCopiesOfWhatStays) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const Case c(seed, false);
    const auto before = c.from->logical(0), after = c.to->logical(0);
    const std::vector<int> needed = spares_needed(c.moves, c.from->first_slots());
    for (int rank = 0; rank < c.from->num_ranks(); ++rank) {
      // Blocks that hold what the rank wants can be used once; everything else needs a spare.
      std::map<int32_t, int> blocks;
      for (int s = c.from->first_slot(rank); s < c.from->first_slot(rank + 1); ++s)
        ++blocks[before[s]];
      int expected = 0;
      for (int s = c.from->first_slot(rank); s < c.from->first_slot(rank + 1); ++s) {
        if (blocks[after[s]]-- <= 0) ++expected;
      }
      EXPECT_EQ(needed[rank], expected) << "seed " << seed << " rank " << rank;
    }
  }
}

TEST(Moves, RefusePlacementsThatDoNotFit) {
  const Placement a = Placement::linear(2, 8, 2), b = Placement::linear(2, 8, 4);
  EXPECT_THROW(plan_moves(a, b, 0), InvalidArgument);
  EXPECT_THROW(plan_moves(a, a, 2), InvalidArgument);
  EXPECT_THROW(plan_moves(a, Placement::linear(2, 9, 2), 0), InvalidArgument);
  EXPECT_THROW(plan_moves(a, a, 0, {{0}}), InvalidArgument);
  EXPECT_TRUE(plan_moves(a, a, 1).empty());
}

}  // namespace
}  // namespace trimtab::test
