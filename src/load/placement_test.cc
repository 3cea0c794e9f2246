// SPDX-License-Identifier: Apache-2.0
#include "trimtab/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

using Ids = std::vector<int32_t>;

template <class Body>
void expect_refused(Body&& body, const std::vector<std::string>& parts) {
  try {
    body();
    ADD_FAILURE() << "accepted; should name " << parts[0];
  } catch (const InvalidArgument& e) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
          << e.what() << "\n lacks " << part;
    }
  }
}

Ids logical(const Placement& placement, int layer) {
  const auto ids = placement.logical(layer);
  return Ids(ids.begin(), ids.end());
}

// D12: expert map, logical-to-physical map and slots are views of one placement; a dispatcher gets
//     physical ids, or logical ones with the replicas of each.
TEST(Placement, LinearSharesOutWhatDoesNotDivide) {
  const Placement p = Placement::linear(2, 10, 4);
  EXPECT_EQ(Ids(p.first_slots().begin(), p.first_slots().end()), (Ids{0, 3, 6, 8, 10}));
  EXPECT_EQ(p.num_layers(), 2);
  EXPECT_EQ(p.num_experts(), 10);
  EXPECT_EQ(p.num_ranks(), 4);
  EXPECT_EQ(p.num_slots(), 10);
  EXPECT_EQ(p.version(), 0U);
  EXPECT_EQ(p.slots_of_rank(1), 3);
  EXPECT_EQ(p.slots_of_rank(3), 2);
  for (int l = 0; l < 2; ++l) {
    EXPECT_EQ(logical(p, l), (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    for (int r = 0; r < 4; ++r) EXPECT_EQ(p.log2phy(l, r), (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
}

TEST(Placement, MoreRanksThanExperts) {
  const Placement p = Placement::linear(1, 2, 5);
  EXPECT_EQ(Ids(p.first_slots().begin(), p.first_slots().end()), (Ids{0, 1, 2, 2, 2, 2}));
  EXPECT_EQ(p.slots_of_rank(4), 0);
  EXPECT_EQ(p.log2phy(0, 4), (Ids{0, 1}));
}

TEST(Placement, RankOfSlotPassesOverEmptyRanks) {
  const Placement p(1, 3, {0, 2, 0, 0, 1, 0}, {0, 1, 2});
  EXPECT_EQ(p.rank_of_slot(0), 1);
  EXPECT_EQ(p.rank_of_slot(1), 1);
  EXPECT_EQ(p.rank_of_slot(2), 4);
}

TEST(Placement, LayersAndVersionAreKept) {
  const Placement p(2, 3, {2, 2}, {0, 1, 2, 0, 2, 2, 1, 0}, 41);
  EXPECT_EQ(logical(p, 0), (Ids{0, 1, 2, 0}));
  EXPECT_EQ(logical(p, 1), (Ids{2, 2, 1, 0}));
  EXPECT_EQ(p.version(), 41U);
}

TEST(Placement, OtherExpertsInTheSameSlots) {
  const Placement p(2, 3, {3, 0, 1}, {0, 1, 2, 0, 2, 2, 1, 0}, 41);
  const Placement other = p.with({2, 1, 0, 0, 0, 1, 2, 1}, 42);
  EXPECT_EQ(logical(other, 0), (Ids{2, 1, 0, 0}));
  EXPECT_EQ(logical(other, 1), (Ids{0, 1, 2, 1}));
  EXPECT_EQ(Ids(other.logical().begin(), other.logical().end()), (Ids{2, 1, 0, 0, 0, 1, 2, 1}));
  EXPECT_EQ(other.slots_of_rank(0), 3);
  EXPECT_EQ(other.slots_of_rank(1), 0);
  EXPECT_EQ(other.version(), 42U);
  EXPECT_THROW(p.with({0, 1, 2}, 42), InvalidArgument);
  EXPECT_THROW(p.with({0, 1, 1, 0, 0, 1, 2, 1}, 42),
               InvalidArgument);  // expert 2 has no slot in layer 0
}

TEST(Placement, Log2phyTakesTheOwnSlotFirst) {
  // Expert 0 on both ranks, expert 1 on rank 0, expert 2 twice on rank 1.
  const Placement p(1, 3, {2, 3}, {0, 1, 2, 0, 2});
  EXPECT_EQ(p.log2phy(0, 0), (Ids{0, 1, 2}));
  EXPECT_EQ(p.log2phy(0, 1), (Ids{3, 1, 2}));
}

// B23: a mistake made elsewhere: replica = rank % copies: always the same ones; missing experts
//     shorten the map; ragged slots unchecked.
TEST(Placement, Log2phyDealsReplicasToRanksWithoutOne) {
  // Expert 0 on ranks 0 and 2. Ranks 1 and 3 must not both go to the same one, as rank % 2 would
  // have it.
  const Placement p(1, 3, {1, 1, 1, 1}, {0, 1, 0, 2});
  EXPECT_EQ(p.log2phy(0, 0)[0], 0);
  EXPECT_EQ(p.log2phy(0, 2)[0], 2);
  EXPECT_EQ(p.log2phy(0, 1)[0], 0);
  EXPECT_EQ(p.log2phy(0, 3)[0], 2);
}

TEST(Placement, Log2phyStartsTheDealElsewhereForEachExpert) {
  // Experts 0 and 1 both on ranks 0 and 1; rank 2, the only one without them, must not use rank 0
  // for both.
  const Placement p(1, 3, {2, 2, 1}, {0, 1, 0, 1, 2});
  const Ids seen = p.log2phy(0, 2);
  EXPECT_EQ(p.rank_of_slot(seen[0]), 0);
  EXPECT_EQ(p.rank_of_slot(seen[1]), 1);
}

TEST(Placement, Log2phyIsRightFairAndOwnFirstForRandomPlacements) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 9);
    const int experts = 1 + static_cast<int>(random() % 12);
    std::vector<int> slots(ranks);
    for (int& s : slots) s = static_cast<int>(random() % 5);
    int total = 0;
    for (const int s : slots) total += s;
    if (total < experts) {
      slots[0] += experts - total;
      total = experts;
    }
    Ids held(total);
    for (size_t s = 0; s < held.size(); ++s) {
      held[s] = static_cast<int32_t>(
          s < static_cast<size_t>(experts) ? s : random() % static_cast<size_t>(experts));
    }
    std::shuffle(held.begin(), held.end(), random);
    const Placement p(1, experts, slots, held);
    std::vector<int> served(held.size());  // by ranks that do not hold the expert
    for (int r = 0; r < ranks; ++r) {
      const Ids map = p.log2phy(0, r);
      ASSERT_EQ(map.size(), static_cast<size_t>(experts));
      for (int32_t e = 0; e < experts; ++e) {
        const int32_t slot = map[e];
        ASSERT_EQ(held[slot], e);
        const auto first = held.begin() + p.first_slot(r);
        const bool owns = std::count(first, held.begin() + p.first_slot(r + 1), e) > 0;
        ASSERT_EQ(p.rank_of_slot(slot) == r, owns);
        if (!owns) ++served[slot];
      }
    }
    for (int32_t e = 0; e < experts; ++e) {
      int low = std::numeric_limits<int>::max();
      int high = 0;
      for (size_t s = 0; s < held.size(); ++s) {
        if (held[s] != e) continue;
        low = std::min(low, served[s]);
        high = std::max(high, served[s]);
      }
      ASSERT_LE(high - low, 1) << "expert " << e;
    }
  }
}

TEST(Placement, ImpossibleOnesAreRefused) {
  expect_refused([] { Placement(1, 3, {2, 1}, {0, 1, 3}); },
                 {"layer 0", "slot 2", "expert 3 of 3"});
  expect_refused([] { Placement(2, 3, {2, 1}, {0, 1, 2, 0, -1, 2}); },
                 {"layer 1", "slot 1", "expert -1"});
  expect_refused([] { Placement(2, 3, {2, 2}, {0, 1, 2, 0, 0, 1, 0, 1}); },
                 {"layer 1", "no slot for expert 2"});
  expect_refused([] { Placement(2, 3, {2, 1}, {0, 1, 2}); }, {"3 entries", "2 layers", "3 slots"});
  expect_refused([] { Placement(1, 1, {2, -1}, {0}); }, {"rank 1", "-1 slots"});
  expect_refused([] { Placement(1, 1, {2147483647, 1}, {0}); }, {"2147483648", "rank 1"});
  expect_refused([] { Placement(1, 1, {}, {}); }, {"0 ranks"});
  expect_refused([] { Placement(0, 1, {1}, {}); }, {"0 layers"});
  expect_refused([] { Placement(1, 0, {1}, {0}); }, {"0 experts"});
  expect_refused([] { Placement::linear(1, 8, 0); }, {"0 ranks"});
  expect_refused([] { Placement::linear(-1, 8, 2); }, {"-1 layers"});
}

TEST(Placement, OutOfRangeQuestionsAreRefused) {
  const Placement p = Placement::linear(2, 4, 2);
  expect_refused([&] { p.logical(2); }, {"layer 2 of 2"});
  expect_refused([&] { p.logical(-1); }, {"layer -1"});
  expect_refused([&] { p.log2phy(0, 2); }, {"rank 2 of 2"});
  expect_refused([&] { p.log2phy(5, 0); }, {"layer 5"});
  expect_refused([&] { p.rank_of_slot(4); }, {"slot 4 of 4"});
  expect_refused([&] { p.rank_of_slot(-1); }, {"slot -1"});
}

}  // namespace
}  // namespace trimtab
