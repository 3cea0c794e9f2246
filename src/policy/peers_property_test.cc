// SPDX-License-Identifier: Apache-2.0
// What every plan of the published policies must keep, over all small sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "policy/policies.h"
#include "policy/static_placement.h"

namespace trimtab {
namespace {

struct Peer {
  const char* name;
  std::unique_ptr<Policy> (*make)(const PolicyOptions&);
  bool may_duplicate;  // the published deepseek planner does
};

const Peer kPeers[] = {
    {"static", make_static_policy, false}, {"round_robin", make_round_robin_policy, false},
    {"random", make_random_policy, false}, {"deepseek", make_deepseek_policy, true},
    {"swift", make_swift_policy, false},   {"flashlb", make_flashlb_policy, false}};

std::vector<int32_t> first_slots_of(int num_ranks, int num_slots) {
  std::vector<int32_t> first = {0};
  for (int r = 0; r < num_ranks; ++r)
    first.push_back(first.back() + num_slots / num_ranks + (r < num_slots % num_ranks));
  return first;
}

Placement make_current(int layers, int experts, std::span<const int32_t> first_slots,
                       uint64_t seed) {
  std::vector<int> slots_per_rank;
  for (size_t r = 0; r + 1 < first_slots.size(); ++r)
    slots_per_rank.push_back(first_slots[r + 1] - first_slots[r]);
  std::vector<int32_t> logical;
  for (int l = 0; l < layers; ++l) {
    const std::vector<int32_t> placement =
        random_placement(experts, first_slots, seed + static_cast<uint64_t>(l));
    logical.insert(logical.end(), placement.begin(), placement.end());
  }
  return {layers, experts, std::move(slots_per_rank), std::move(logical)};
}

// Calls check(experts, first_slots, seed) for E 1..16, R 1..8, S 1..4 where the experts fit, with
// some ragged sizes.
template <class Check>
void for_each_size(Check&& check) {
  uint64_t seed = 0;
  for (int experts = 1; experts <= 16; ++experts) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int slots = ranks; slots <= 4 * ranks; slots += ranks > 2 ? ranks - 1 : 1) {
        if (slots >= experts) check(experts, first_slots_of(ranks, slots), ++seed);
      }
    }
  }
}

// Duplicates of a rank beyond those that its number of slots forces.
int64_t unforced_duplicates(const Placement& placement, int layer) {
  int64_t unforced = 0;
  for (int r = 0; r < placement.num_ranks(); ++r) {
    const auto slots =
        placement.logical(layer).subspan(placement.first_slot(r), placement.slots_of_rank(r));
    const auto distinct = static_cast<int>(std::set<int32_t>(slots.begin(), slots.end()).size());
    unforced += std::min(placement.slots_of_rank(r), placement.num_experts()) - distinct;
  }
  return unforced;
}

bool same_placement(const Placement& a, const Placement& b, int layer) {
  return std::equal(a.logical(layer).begin(), a.logical(layer).end(), b.logical(layer).begin());
}

class EveryPeer : public ::testing::TestWithParam<Peer> {};

TEST_P(EveryPeer, PlacesEveryExpertWithoutUnforcedDuplicates) {
  const std::unique_ptr<Policy> policy = GetParam().make({});
  EXPECT_EQ(policy->name(), GetParam().name);
  const int64_t kLoads[] = {0, 1, 7, (1 << 24) + 1, int64_t{1} << 53};
  for_each_size([&](int experts, const std::vector<int32_t>& first_slots, uint64_t seed) {
    std::mt19937_64 rng(seed);
    const Placement current = make_current(2, experts, first_slots, seed);
    Load load{.num_steps = 3, .num_layers = 2, .num_experts = experts, .counts = {}};
    for (int i = 0; i < 3 * 2 * experts; ++i)
      load.counts.push_back(kLoads[rng() % (seed % 2 == 0 ? 5 : 3)]);
    const Plan plan = policy->rebalance(
        {.load = load, .current = current});  // Placement throws if an expert is missing
    for (int layer = 0; layer < 2; ++layer) {
      if (!GetParam().may_duplicate) {
        ASSERT_EQ(unforced_duplicates(plan.placement, layer), 0) << "seed " << seed;
      }
    }
    const Plan again = policy->rebalance({.load = load, .current = current});
    ASSERT_TRUE(same_placement(plan.placement, again.placement, 0) &&
                same_placement(plan.placement, again.placement, 1));
  });
}

TEST_P(EveryPeer, ZeroLoadKeepsThePlacement) {
  const std::unique_ptr<Policy> policy = GetParam().make({});
  for_each_size([&](int experts, const std::vector<int32_t>& first_slots, uint64_t seed) {
    const Placement current = make_current(1, experts, first_slots, seed);
    const Load load{.num_steps = 2,
                    .num_layers = 1,
                    .num_experts = experts,
                    .counts = std::vector<int64_t>(static_cast<size_t>(2 * experts), 0)};
    const Plan plan = policy->rebalance({.load = load, .current = current});
    ASSERT_TRUE(same_placement(plan.placement, current, 0)) << "seed " << seed;
    ASSERT_TRUE(plan.moves.empty());
  });
}

TEST_P(EveryPeer, BalancedLoadMovesNothing) {
  const std::unique_ptr<Policy> policy = GetParam().make({});
  const Placement current(1, 8, std::vector<int>(4, 2), {3, 1, 0, 2, 7, 6, 5, 4});
  const Load load{
      .num_steps = 2, .num_layers = 1, .num_experts = 8, .counts = std::vector<int64_t>(16, 12)};
  EXPECT_TRUE(policy->rebalance({.load = load, .current = current}).moves.empty());
}

INSTANTIATE_TEST_SUITE_P(Peers, EveryPeer, ::testing::ValuesIn(kPeers),
                         [](const auto& peer) { return std::string(peer.param.name); });

// Policies that align to what is there: an expert that stays on its rank stays in its slot.
TEST(AligningPeers, KeptExpertsKeepTheirSlots) {
  for (const Peer& peer : kPeers) {
    if (std::set<std::string>{"static", "round_robin", "random"}.contains(peer.name)) continue;
    const std::unique_ptr<Policy> policy = peer.make({});
    for_each_size([&](int experts, const std::vector<int32_t>& first_slots, uint64_t seed) {
      std::mt19937_64 rng(seed);
      const Placement current = make_current(1, experts, first_slots, seed);
      Load load{.num_steps = 1, .num_layers = 1, .num_experts = experts, .counts = {}};
      for (int e = 0; e < experts; ++e) load.counts.push_back(static_cast<int64_t>(rng() % 100));
      const Plan plan = policy->rebalance({.load = load, .current = current});
      for (int s = 0; s < current.num_slots(); ++s) {
        const int32_t before = current.logical(0)[s];
        const int rank = current.rank_of_slot(s);
        const auto on_rank = [&](const Placement& p) {
          const auto begin = p.logical(0).begin() + p.first_slot(rank);
          return std::count(begin, begin + p.slots_of_rank(rank), before);
        };
        if (on_rank(plan.placement) >= on_rank(current)) {
          ASSERT_EQ(plan.placement.logical(0)[s], before) << peer.name << " seed " << seed;
        }
      }
    });
  }
}

}  // namespace
}  // namespace trimtab
