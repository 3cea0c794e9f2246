// SPDX-License-Identifier: Apache-2.0
#include "live/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

namespace trimtab {
namespace {

TEST(Rounds, AreAsFewAsTheBusiestRankNeeds) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const int ranks = 1 + static_cast<int>(random() % 9);
    std::vector<Route> routes(random() % 60);
    std::vector<int> sent(ranks), received(sent.size());
    int busiest = 0;
    for (Route& r : routes) {
      r = {static_cast<int32_t>(random() % static_cast<unsigned>(ranks)),
           static_cast<int32_t>(random() % static_cast<unsigned>(ranks))};
      busiest = std::max({busiest, ++sent[r.from], ++received[r.to]});
    }
    const std::vector<int32_t> round_of = rounds(routes, ranks);
    ASSERT_EQ(round_of.size(), routes.size());
    std::set<std::tuple<bool, int32_t, int32_t>> taken;
    for (size_t r = 0; r < routes.size(); ++r) {
      ASSERT_GE(round_of[r], 0);
      ASSERT_LT(round_of[r], busiest);
      ASSERT_TRUE(taken.emplace(false, routes[r].from, round_of[r]).second) << "trial " << trial;
      ASSERT_TRUE(taken.emplace(true, routes[r].to, round_of[r]).second) << "trial " << trial;
    }
  }
}

}  // namespace
}  // namespace trimtab
