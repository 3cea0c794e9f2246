// SPDX-License-Identifier: Apache-2.0
#include "policy/align.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "policy/limits.h"

namespace trimtab {
namespace {

int64_t moves(std::span<const int32_t> from, std::span<const int32_t> to,
              std::span<const int32_t> first_slots) {
  const std::vector<int64_t> in = received(from, to, first_slots);
  return std::accumulate(in.begin(), in.end(), int64_t{0});
}

// The fewest moves over all ways to rename the ranks of `proposal` that keep nodes whole.
int64_t fewest_moves(std::span<const int32_t> current, std::span<const int32_t> proposal,
                     const std::vector<int32_t>& first_slots, const Topology& topology) {
  const int ranks = static_cast<int>(first_slots.size()) - 1;
  std::vector<int> to(ranks);
  std::iota(to.begin(), to.end(), 0);
  int64_t best = -1;
  do {
    bool legal = true;
    std::vector<int32_t> renamed(proposal.size());
    for (size_t r = 0; r < to.size(); ++r) {
      const auto t = static_cast<size_t>(to[r]);
      legal = legal && first_slots[r + 1] - first_slots[r] == first_slots[t + 1] - first_slots[t];
      for (size_t q = 0; q < to.size(); ++q) {
        legal =
            legal && (topology.node(static_cast<int>(r)) == topology.node(static_cast<int>(q))) ==
                         (topology.node(to[r]) == topology.node(to[q]));
      }
      if (!legal) break;
      std::copy(proposal.begin() + first_slots[r], proposal.begin() + first_slots[r + 1],
                renamed.begin() + first_slots[t]);
    }
    if (!legal) continue;
    const int64_t count = moves(current, renamed, first_slots);
    if (best < 0 || count < best) best = count;
  } while (std::next_permutation(to.begin(), to.end()));
  return best;
}

TEST(AlignRanks, MovesAsFewWeightsAsAnyRenaming) {
  std::mt19937 random(2);
  for (int round = 0; round < 60; ++round) {
    const int ranks = 2 + round % 5;
    std::vector<int32_t> first_slots = {0};
    for (int r = 0; r < ranks; ++r)
      first_slots.push_back(first_slots.back() + 2 + (round % 3 == 0 ? r % 2 : 0));
    const int experts = 5 + round % 4;
    const auto draw = [&] {
      std::vector<int32_t> placement(first_slots.back());
      for (int32_t& e : placement)
        e = static_cast<int32_t>(random() % static_cast<uint32_t>(experts));
      return placement;
    };
    const std::vector<int32_t> current = draw();
    const std::vector<int32_t> proposal = draw();
    const Topology topology =
        ranks % 2 == 0 && round % 2 == 0 ? Topology::even(ranks, 2) : Topology{};
    const std::vector<int32_t> aligned =
        align_ranks(current, proposal, SlotRanges(first_slots), experts, topology);
    EXPECT_EQ(moves(current, aligned, first_slots),
              fewest_moves(current, proposal, first_slots, topology))
        << "round " << round;
  }
}

TEST(AlignSlots, KeptExpertsKeepTheirSlots) {
  const std::vector<int32_t> first_slots = {0, 3, 5};
  const std::vector<int32_t> current = {4, 1, 1, 0, 2};
  const std::vector<int32_t> proposal = {1, 3, 4, 5, 0};
  EXPECT_EQ(align_slots(current, proposal, SlotRanges(first_slots)),
            (std::vector<int32_t>{4, 1, 3, 0, 5}));
}

}  // namespace
}  // namespace trimtab
