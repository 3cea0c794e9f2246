// SPDX-License-Identifier: Apache-2.0
#include "router/top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace trimtab {
namespace {

std::vector<int32_t> top_k(const std::vector<float>& values, size_t k) {
  std::vector<int32_t> ids(k, -99);
  std::vector<float> scratch(k);
  TopK best(ids, scratch.data());
  for (size_t i = 0; i < values.size(); ++i) best.offer(static_cast<int32_t>(i), values[i]);
  return ids;
}

TEST(TopK, BestFirstTiesToTheLowerId) {
  EXPECT_EQ(top_k({1, 3, 2, 3, 0, 3}, 3), (std::vector<int32_t>{1, 3, 5}));
  EXPECT_EQ(top_k({5, 5, 5, 5}, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(top_k({0, 1, 2, 3}, 1), (std::vector<int32_t>{3}));
  EXPECT_EQ(top_k({0, 1, 2, 3}, 4), (std::vector<int32_t>{3, 2, 1, 0}));
}

TEST(TopK, InfinitiesAreOrdinaryValues) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(top_k({-inf, -inf, -inf}, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(top_k({-inf, inf, 0, inf}, 4), (std::vector<int32_t>{1, 3, 2, 0}));
}

TEST(TopK, EqualsAFullSort) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    const size_t n = 1 + random() % 70;
    const size_t k = 1 + random() % n;
    const uint32_t levels = 1 + static_cast<uint32_t>(random() % 40);  // few levels: many ties
    std::vector<float> values(n);
    for (float& v : values) v = static_cast<float>(random() % levels) - 10.0F;
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const float x = values[a];
      const float y = values[b];
      return x != y ? x > y : a < b;
    });
    order.resize(k);
    ASSERT_EQ(top_k(values, k), order) << "round " << round;
  }
}

}  // namespace
}  // namespace trimtab
