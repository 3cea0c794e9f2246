// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

constexpr int kExperts = 16, kTopK = 4;
constexpr int64_t kTokens = 4000;

TEST(Routing, PicksOfATokenAreDistinctAndWeightsSumToOne) {
  for (const RoutingKind kind : {RoutingKind::kNatural, RoutingKind::kSkewed}) {
    const Picks picks = route(kind, 50, kExperts, kTopK, 7);
    ASSERT_EQ(picks.ids.size(), 50U * kTopK);
    for (auto ids = picks.ids.begin(); ids != picks.ids.end(); ids += kTopK) {
      EXPECT_EQ(std::set<int32_t>(ids, ids + kTopK).size(), size_t{kTopK});
    }
    for (auto weights = picks.weights.begin(); weights != picks.weights.end(); weights += kTopK) {
      EXPECT_NEAR(std::accumulate(weights, weights + kTopK, 0.0F), 1.0F, 1e-6F);
    }
  }
}

TEST(Routing, NaturalIsLevelAndSkewedIsNot) {
  const auto share_of_hottest = [](RoutingKind kind, uint64_t seed) {
    const std::vector<int32_t> counts =
        counts_of(route(kind, kTokens, kExperts, kTopK, seed).ids, kExperts);
    const auto hottest = std::max_element(counts.begin(), counts.end());
    return std::pair(static_cast<double>(*hottest) / kTokens, hottest - counts.begin());
  };
  EXPECT_NEAR(share_of_hottest(RoutingKind::kNatural, 1).first, 0.25, 0.03);
  EXPECT_GT(share_of_hottest(RoutingKind::kSkewed, 1).first, 0.6);
  EXPECT_EQ(share_of_hottest(RoutingKind::kSkewed, 1).second,
            share_of_hottest(RoutingKind::kSkewed, 2).second);
}

// One pick by Zipf: the chances are 1/n over their sum.
TEST(Routing, OneSkewedPickFollowsZipf) {
  std::vector<int32_t> counts = counts_of(route(RoutingKind::kSkewed, 40'000, 4, 1, 3).ids, 4);
  std::sort(counts.rbegin(), counts.rend());
  for (int n = 1; n <= 4; ++n) EXPECT_NEAR(counts[n - 1] / 40'000.0, 12.0 / 25 / n, 0.01);
}

TEST(Routing, SeedsAndNames) {
  EXPECT_EQ(route(RoutingKind::kNatural, 9, kExperts, kTopK, 1).ids,
            route(RoutingKind::kNatural, 9, kExperts, kTopK, 1).ids);
  EXPECT_NE(route(RoutingKind::kNatural, 9, kExperts, kTopK, 1).ids,
            route(RoutingKind::kNatural, 9, kExperts, kTopK, 2).ids);
  EXPECT_EQ(find_routing("skewed"), RoutingKind::kSkewed);
  EXPECT_THROW(find_routing("even"), InvalidArgument);
}

}  // namespace
}  // namespace trimtab::bench
