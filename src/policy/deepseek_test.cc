// SPDX-License-Identifier: Apache-2.0
// deepseek_placement against recorded outputs of the reference.
#include "policy/deepseek.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "policy/policies.h"
#include "policy/testing.h"

namespace trimtab {
namespace {

template <class T>
std::vector<T> numbers(std::istream& in) {
  std::string line;
  do {
    if (!std::getline(in, line)) return {};
  } while (line.starts_with('#'));
  std::istringstream text(line);
  return {std::istream_iterator<T>(text), {}};
}

TEST(Deepseek, AgreesWithTheReference) {
  std::ifstream in(TRIMTAB_SOURCE_DIR "/tests/fixtures/eplb/deepseek_reference.txt");
  int cases = 0;
  for (std::vector<int> head = numbers<int>(in); !head.empty(); head = numbers<int>(in), ++cases) {
    ASSERT_EQ(head.size(), 6u);
    const auto [layers, experts, replicas, groups, nodes, ranks] =
        std::tuple(head[0], head[1], head[2], head[3], head[4], head[5]);
    for (int layer = 0; layer < layers; ++layer) {
      const std::vector<int64_t> load = numbers<int64_t>(in);
      const std::vector<int32_t> expected = numbers<int32_t>(in);
      ASSERT_EQ(load.size(), static_cast<size_t>(experts));
      EXPECT_EQ(deepseek_placement(load, SlotRanges(equal_slots(ranks, replicas / ranks)),
                                   Topology::even(ranks, nodes), groups),
                expected)
          << "case " << cases << ", layer " << layer;
    }
  }
  EXPECT_EQ(cases, 1001);
}

// 2^24 and 2^24 + 1 are one float: the lower expert comes first, as with equal loads.
TEST(Deepseek, LoadsAreComparedAsFloat32) {
  const std::vector<int64_t> load = {(1 << 24), (1 << 24) + 1, 5, 4};
  EXPECT_EQ(deepseek_placement(load, SlotRanges(equal_slots(2, 2)), {}, 1),
            (std::vector<int32_t>{0, 2, 1, 3}));
}

TEST(Deepseek, PlansGloballyWhenANodeHasTooFewSlots) {
  const std::vector<int64_t> load = {9, 1, 1, 1};
  const std::vector<int32_t> first_slots = {0, 1, 4};  // nodes of 1 and 3 slots, 2 experts each
  EXPECT_EQ(deepseek_placement(load, SlotRanges(first_slots), Topology::even(2, 2), 2),
            (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(Deepseek, KeepsSlotsUnlessToldNotTo) {
  const Load load{.num_steps = 1, .num_layers = 1, .num_experts = 4, .counts = {1, 2, 30, 4}};
  const Placement current(1, 4, {3, 3}, {0, 1, 2, 3, 1, 2});
  const std::vector<int32_t> published =
      deepseek_placement({load.counts}, current.first_slots(), {}, 1);
  const auto placement_of = [&](bool keep) {
    PolicyOptions options;
    options.keep_slots = keep;
    const Plan plan = make_deepseek_policy(options)->rebalance({.load = load, .current = current});
    return std::vector<int32_t>(plan.placement.logical(0).begin(), plan.placement.logical(0).end());
  };
  EXPECT_EQ(placement_of(false), published);
  const std::vector<int32_t> kept = placement_of(true);
  for (size_t r = 0; r < 2; ++r) {
    const auto begin = static_cast<int64_t>(3 * r);
    EXPECT_TRUE(std::is_permutation(kept.begin() + begin, kept.begin() + begin + 3,
                                    published.begin() + begin));
    for (size_t s = 3 * r; s < 3 * r + 3; ++s) {
      const int32_t before = current.logical(0)[s];
      const bool stays =
          std::count(published.begin() + begin, published.begin() + begin + 3, before) > 0;
      EXPECT_TRUE(!stays || kept[s] == before) << "slot " << s;
    }
  }
}

}  // namespace
}  // namespace trimtab
