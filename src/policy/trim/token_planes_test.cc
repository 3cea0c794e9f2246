// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/token_planes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace trimtab {
namespace {

// `tokens` tokens that pick different experts at random.
TokenSample random_tokens(int experts, int top_k, int tokens, bool with_sources, uint32_t seed) {
  std::mt19937 random(seed);
  TokenSample sample{.num_layers = 1, .num_experts = experts, .top_k = top_k};
  std::vector<int32_t> ids(cells(experts));
  std::iota(ids.begin(), ids.end(), 0);
  for (int t = 0; t < tokens; ++t) {
    std::shuffle(ids.begin(), ids.end(), random);
    sample.ids.insert(sample.ids.end(), ids.begin(), ids.begin() + top_k);
    if (with_sources) sample.source_rank.push_back(static_cast<int32_t>(random() % 8));
  }
  return sample;
}

// The cost in quarters of a copy where every expert has replicas on at most two nodes.
int64_t cost_of(const TokenSample& tokens, const Matrix<int32_t>& on_node, int nodes,
                std::span<const int32_t> node_of_rank) {
  int64_t cost = 0;
  for (int64_t t = 0; t < tokens.num_tokens(); ++t) {
    for (int source = 0; source < nodes; ++source) {
      if (!tokens.source_rank.empty() &&
          node_of_rank[cells(tokens.source_rank[cells(t)])] != source)
        continue;
      for (int to = 0; to < nodes; ++to) {
        int certain = 0, half = 0;
        for (const int32_t e : tokens.picks(t, 0)) {
          if (on_node(e, source) > 0 || on_node(e, to) == 0) continue;
          const auto holders = std::ranges::count_if(on_node[e], [](int32_t n) { return n > 0; });
          ++(holders == 1 ? certain : half);
        }
        cost += certain > 0 ? 4 : half > 1 ? 3 : 2 * half;
      }
    }
  }
  return cost;
}

TEST(TokenPlanes, CostWhatTheTokensCostOneByOne) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int nodes = 2 + static_cast<int>(seed % 3), experts = 20;
    const int top_k = 1 + static_cast<int>(seed * 5 % 19);  // 2 to 5 planes
    std::vector<int32_t> node_of_rank(8);
    for (int r = 0; r < 8; ++r) node_of_rank[cells(r)] = r % nodes;
    const TokenSample tokens = random_tokens(experts, top_k, 700, seed % 2 == 1, seed);
    TokenPlanes planes(tokens, 0, node_of_rank, nodes, 1'000);
    EXPECT_EQ(planes.copy_of_all(), 4.0 * 700 * (seed % 2 == 1 ? 1 : nodes));
    std::mt19937 random(seed);
    Matrix<int32_t> on_node(experts, nodes, 0);
    for (int round = 0; round < 60; ++round) {
      Matrix<int32_t> next = on_node;
      std::vector<int32_t> changed;
      for (int e = 0; e < experts; ++e) {
        if (round > 0 && random() % 8 != 0) continue;
        changed.push_back(e);
        std::ranges::fill(next[e], 0);
        next(e, random() % static_cast<unsigned>(nodes)) = 1;
        next(e, random() % static_cast<unsigned>(nodes)) = 1;
      }
      const int64_t before = planes.cost();
      ASSERT_EQ(before + planes.change_of(changed, next),
                cost_of(tokens, next, nodes, node_of_rank));
      ASSERT_EQ(planes.cost(), before);  // nothing is changed yet
      if (round % 3 == 1) continue;
      planes.keep();
      on_node = next;
      ASSERT_EQ(planes.cost(), cost_of(tokens, on_node, nodes, node_of_rank));
    }
  }
}

TEST(TokenPlanes, AreTheSameInAllInstructionSets) {
  const std::vector<PlaneKernel> kernels = all_plane_kernels();
  std::mt19937_64 random(3);
  for (const int num_planes : {2, 3, 4, kMostPlanes}) {
    constexpr int kWords = 24;
    std::vector<uint64_t> planes(cells(2 * num_planes, kWords)), members(cells(4, kWords));
    for (uint64_t& word : planes) word = random() & random();
    for (uint64_t& word : members) word = random() & random();
    const std::vector<PlaneChange> changes = {{members.data(), false, true},
                                              {members.data() + kWords, true, true},
                                              {members.data() + 2 * kWords, false, false},
                                              {members.data() + 3 * kWords, true, false}};
    std::vector<uint64_t> expected = planes;
    const int64_t cost = kernels[0](expected.data(), kWords, num_planes, changes.data(), 4, true);
    for (const PlaneKernel kernel : kernels) {
      std::vector<uint64_t> now = planes;
      EXPECT_EQ(kernel(now.data(), kWords, num_planes, changes.data(), 4, false), cost);
      EXPECT_EQ(now, planes);
      EXPECT_EQ(kernel(now.data(), kWords, num_planes, changes.data(), 4, true), cost);
      EXPECT_EQ(now, expected);
    }
  }
}

}  // namespace
}  // namespace trimtab
