// SPDX-License-Identifier: Apache-2.0
// The parts that trim is made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "policy/trim/change_replicas.h"
#include "policy/trim/episodes.h"
#include "policy/trim/exchange_search.h"
#include "policy/trim/level.h"
#include "policy/trim/pair_kernel.h"
#include "policy/trim/replica_search.h"
#include "policy/trim/replicas.h"
#include "policy/trim/searched_slots.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

Load random_load(std::mt19937& random, int64_t steps, int experts) {
  Load load{.num_steps = steps, .num_layers = 1, .num_experts = experts, .counts = {}};
  std::lognormal_distribution<double> draw(6, 1);
  for (int64_t i = 0; i < steps * experts; ++i)
    load.counts.push_back(static_cast<int64_t>(draw(random)));
  return load;
}

std::vector<int32_t> sorted(std::vector<int32_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

int duplicates(const LayerTask& task, const std::vector<int32_t>& placement) {
  int count = 0;
  for (int r = 0; r < task.num_ranks(); ++r) {
    const std::span<const int32_t> on_rank = task.slots.of(r, std::span<const int32_t>(placement));
    const std::vector<int32_t> rank = sorted({on_rank.begin(), on_rank.end()});
    for (size_t i = 1; i < rank.size(); ++i) count += rank[i] == rank[i - 1] ? 1 : 0;
  }
  return count;
}

// Random sides of a pair; slots beyond the rank's are zero and blocked, as ExchangeSearch leaves
// them.
struct RandomPair {
  RandomPair(std::mt19937& random, int slots_a, int slots_b, int episodes)
      : k(episodes), width(lane_width(std::max(slots_a, slots_b))) {
    for (int side = 0; side < 2; ++side) {
      const int slots = side == 0 ? slots_a : slots_b;
      std::uniform_real_distribution<float> draw(0.5F, 1.5F);
      for (int i = 0; i < k; ++i) {
        for (int s = 0; s < width; ++s) {
          up[side].push_back(s < slots ? draw(random) : 0);
          down[side].push_back(s < slots ? 1 / up[side].back() : 0);
        }
        term[side].push_back(draw(random));
      }
      for (int s = 0; s < width; ++s)
        cost[side].push_back(s < slots ? 0.01F * draw(random) : kBlocked);
    }
    a = {up[0].data(), down[0].data(), term[0].data(), cost[0].data(), slots_a};
    b = {up[1].data(), down[1].data(), term[1].data(), cost[1].data(), slots_b};
    for (int i = 0; i < slots_a * width; ++i)
      noise.push_back(std::uniform_real_distribution<float>(-1, 1)(random));
  }

  double score(int i, int j) const {
    double sum = static_cast<double>(cost[0][i]) + static_cast<double>(cost[1][j]);
    for (int e = 0; e < k; ++e) {
      const auto at = static_cast<size_t>(e);
      const auto row = static_cast<size_t>(e * width);
      const double up_a = up[0][row + static_cast<size_t>(i)];
      const double up_b = up[1][row + static_cast<size_t>(j)];
      sum += static_cast<double>(term[0][at]) * (up_b / up_a - 1) +
             static_cast<double>(term[1][at]) * (up_a / up_b - 1);
    }
    return sum;
  }

  int k, width;
  std::vector<float> up[2], down[2], term[2], cost[2], noise;
  PairSide a, b;
};

TEST(PairKernel, FindsTheBestExchangeWithTheSameBitsOnEveryInstructionSet) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    RandomPair pair(random, 1 + round % 19, 1 + (round * 7) % 18, 1 + round % 33);
    double best = 1e8;
    for (int i = 0; i < pair.a.slots; ++i) {
      for (int j = 0; j < pair.b.slots; ++j) best = std::min(best, pair.score(i, j));
    }
    const std::vector<BestExchange> all = all_best_exchanges();
    const PairChoice first = all[0](pair.a, pair.b, pair.k, pair.width, 1e8F, nullptr, 0);
    ASSERT_GE(first.slot_a, 0);
    EXPECT_NEAR(pair.score(first.slot_a, first.slot_b), best, 1e-4) << "round " << round;
    const PairChoice noisy =
        all[0](pair.a, pair.b, pair.k, pair.width, 1e8F, pair.noise.data(), 0.5F);
    for (const BestExchange other : all) {
      const PairChoice same = other(pair.a, pair.b, pair.k, pair.width, 1e8F, nullptr, 0);
      EXPECT_EQ(same.score, first.score);
      EXPECT_EQ(same.slot_a, first.slot_a);
      EXPECT_EQ(same.slot_b, first.slot_b);
      const PairChoice same_noisy =
          other(pair.a, pair.b, pair.k, pair.width, 1e8F, pair.noise.data(), 0.5F);
      EXPECT_EQ(same_noisy.score, noisy.score);
      EXPECT_EQ(same_noisy.slot_a, noisy.slot_a);
      const PairChoice none = other(pair.a, pair.b, pair.k, pair.width, -1e6F, nullptr, 0);
      EXPECT_EQ(none.slot_a, -1);
    }
  }
}

TEST(PairKernel, TheLowerSlotsWinATie) {
  for (const int slots : {2, 5, 9, 20}) {
    const int width = lane_width(slots);
    const std::vector<float> ones(width, 1);
    const std::vector<float> zeros(width, 0);
    const PairSide side{ones.data(), ones.data(), ones.data(), zeros.data(), slots};
    for (const BestExchange exchange : all_best_exchanges()) {
      const PairChoice choice = exchange(side, side, 1, width, 1, nullptr, 0);
      EXPECT_EQ(choice.slot_a, 0);
      EXPECT_EQ(choice.slot_b, 0);
    }
  }
}

class SearchTest : public testing::Test {
 protected:
  void make(int seed, int experts, int ranks, int slots, int64_t steps, int episodes) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    load_ = random_load(random, steps, experts);
    placement_ = default_placement(1, experts, std::vector<int>(ranks, slots));
    episodes_ = layer_episodes(load_, nullptr, 0, episodes, ranks);
    slots_.emplace(placement_);
    task_ = slots_->task(0, episodes_, 0);
  }

  Load load_;
  Placement placement_ = default_placement(1, 1, {1});
  Episodes episodes_;
  std::optional<SearchedSlots> slots_;
  LayerTask task_;
};

TEST_F(SearchTest, PlacementCostIsTheMeanPeakOfTheEpisodes) {
  make(4, 12, 4, 4, 8, 8);
  const std::span<const int32_t> placement = placement_.logical(0);
  const double mean = levelness(rank_loads(placement_, load_, 0), 0).par_step_mean;
  EXPECT_NEAR(placement_cost(task_, placement), mean, 1e-6);
  task_.move_price = 0.5;
  EXPECT_NEAR(placement_cost(task_, placement), mean, 1e-6) << "nothing moves";
}

TEST_F(SearchTest, ExchangesKeepReplicasAddNoDuplicateAndLowerThePeak) {
  for (int seed = 0; seed < 10; ++seed) {
    make(seed, 20 + seed, 6, 5, 40, 10);
    const std::vector<float> demand = expert_demand(episodes_, 4);
    const std::vector<int32_t> start =
        first_placement(task_, choose_replicas(task_, demand), demand);
    EXPECT_EQ(duplicates(task_, start), 0);
    const Noise noise(5);
    ExchangeSearch search(task_, noise, start, 1);
    search.sharpen(20);
    for (int i = 0; i < 5; ++i) search.sweep(1e-3F);
    search.sharpen(40);
    while (search.sweep(0) > 0) {
    }
    const std::vector<int32_t> placement(search.placement().begin(), search.placement().end());
    EXPECT_EQ(sorted(placement), sorted(start)) << seed;
    EXPECT_EQ(duplicates(task_, placement), 0) << seed;
    EXPECT_LE(placement_cost(task_, placement), placement_cost(task_, start)) << seed;
  }
}

TEST_F(SearchTest, AHighPriceKeepsTheCurrentPlacement) {
  make(5, 16, 4, 5, 40, 10);
  task_.move_price = 10;
  const Noise noise(5);
  const std::vector<int32_t> current(placement_.logical(0).begin(), placement_.logical(0).end());
  ExchangeSearch search(task_, noise, current, 1);
  search.sharpen(40);
  EXPECT_EQ(search.sweep(0), 0);
  std::vector<int32_t> placement = current;
  level(task_, placement, 1);
  EXPECT_EQ(placement, current);
}

TEST_F(SearchTest, LevelReturnsThePeakItReached) {
  for (int seed = 0; seed < 10; ++seed) {
    make(seed, 40, 8, 6, 1, 1);
    const std::vector<float> demand = expert_demand(episodes_, 0);
    std::vector<int32_t> placement = first_placement(task_, choose_replicas(task_, demand), demand);
    const std::vector<int32_t> start = placement;
    const double peak = level(task_, placement, 1.0005);
    EXPECT_NEAR(peak, par(rank_loads(placement, task_.slots, load_.at(0, 0))), 1e-5) << seed;
    EXPECT_LE(peak, placement_cost(task_, start) + 1e-6) << seed;
    EXPECT_LT(peak, 1.02) << seed;
    EXPECT_EQ(duplicates(task_, placement), 0) << seed;
  }
}

TEST_F(SearchTest, ReplicasGoToTheLargestDemandPerReplica) {
  make(6, 10, 5, 4, 1, 1);
  const std::vector<float> demand = expert_demand(episodes_, 0);
  const std::vector<int32_t> replicas = choose_replicas(task_, demand);
  int total = 0;
  for (size_t e = 0; e < replicas.size(); ++e) {
    total += replicas[e];
    EXPECT_GE(replicas[e], 1);
    EXPECT_LE(replicas[e], 5);
    for (size_t other = 0; other < replicas.size(); ++other) {
      // No replica would have served another expert better.
      if (replicas[e] > 1 && replicas[other] < 5) {
        EXPECT_GE(demand[e] / static_cast<float>(replicas[e] - 1),
                  demand[other] / static_cast<float>(replicas[other]));
      }
    }
  }
  EXPECT_EQ(total, 20);
}

TEST(ChooseReplicas, CountsThoseOfFullRanks) {
  // Rank 0 holds every expert for certain; ranks 1 and 2 have a slot each to search.
  const Placement placement(1, 3, {3, 1, 1}, {0, 1, 2, 0, 1});
  const SearchedSlots slots(placement);
  const Episodes episodes{.count = 1, .num_experts = 3, .share = {10, 6, 1}, .weight = {1}};
  const LayerTask task = slots.task(0, episodes, 0);
  EXPECT_EQ(task.full_total, 1);
  // Expert 0 goes from 10 to 5 a replica with its first searched slot, so 6 comes next.
  EXPECT_EQ(choose_replicas(task, episodes.share), (std::vector<int32_t>{1, 1, 0}));
}

TEST_F(SearchTest, SearchedReplicasFillTheSlotsAndPackLower) {
  for (int seed = 0; seed < 8; ++seed) {
    make(seed, 24, 16, 2, 1, 1);
    const std::vector<float> demand = expert_demand(episodes_, 0);
    const std::vector<int32_t> greedy = choose_replicas(task_, demand);
    const std::vector<int32_t> found = search_replicas(task_, {.iterations = 2000, .target = 1}, 1);
    int total = 0;
    for (const int32_t c : found) {
      total += c;
      EXPECT_GE(c, 1);
      EXPECT_LE(c, 16);
    }
    EXPECT_EQ(total, 32);
    const auto peak = [&](const std::vector<int32_t>& replicas) {
      std::vector<int32_t> placement = first_placement(task_, replicas, demand);
      EXPECT_EQ(duplicates(task_, placement), 0);
      return level(task_, placement, 1);
    };
    EXPECT_LE(peak(found), peak(greedy) + 0.02) << seed;
  }
}

TEST_F(SearchTest, ReplicasAreSoughtUntilTheyAreGoodEnough) {
  make(3, 24, 8, 4, 1, 1);
  std::vector<std::vector<int32_t>> shown;
  const auto search = [&](bool good_enough) {
    const auto show = [&](const std::vector<int32_t>& replicas) {
      shown.push_back(replicas);
      return good_enough;
    };
    return search_replicas(task_, {.iterations = 2000, .target = 1, .good_enough = show}, 1);
  };
  const std::vector<int32_t> first = search(true);
  ASSERT_EQ(shown.size(), 1U);
  EXPECT_EQ(shown[0], first);
  shown.clear();
  search(false);
  EXPECT_GT(shown.size(), 1U);
  for (size_t i = 1; i < shown.size(); ++i) EXPECT_NE(shown[i], shown[i - 1]) << "only what is new";
}

TEST_F(SearchTest, ChangedReplicasCostOneMoveEach) {
  make(7, 16, 8, 3, 1, 1);
  const std::vector<float> demand = expert_demand(episodes_, 0);
  const std::vector<int32_t> current(placement_.logical(0).begin(), placement_.logical(0).end());
  size_t last = 25;
  for (const float reluctance : {0.0F, 0.3F, 1.0F, 100.0F}) {
    const std::vector<int32_t> changed = change_replicas(task_, current, demand, reluctance, 24);
    size_t different = 0;
    for (size_t s = 0; s < changed.size(); ++s) different += changed[s] != current[s] ? 1 : 0;
    EXPECT_LE(different, last);
    EXPECT_EQ(duplicates(task_, changed), 0);
    last = different;
  }
  EXPECT_EQ(last, 0U);
}

TEST(Episodes, AddUpRunsOfStepsAndLeaveOutEmptyOnes) {
  const Load load{
      .num_steps = 4, .num_layers = 1, .num_experts = 2, .counts = {1, 3, 0, 0, 0, 0, 6, 2}};
  const Episodes all = layer_episodes(load, nullptr, 0, 8, 2);
  ASSERT_EQ(all.count, 2);
  EXPECT_FLOAT_EQ(all.of(0)[0], 0.5F);
  EXPECT_FLOAT_EQ(all.of(0)[1], 1.5F);
  const Episodes two = layer_episodes(load, nullptr, 0, 2, 2);
  ASSERT_EQ(two.count, 2);
  EXPECT_FLOAT_EQ(two.of(1)[0], 1.5F);
  EXPECT_FLOAT_EQ(two.weight[0], 0.5F);
}

TEST(Episodes, RememberedWeightsHalveAndTheOldestIsDropped) {
  const Load load{.num_steps = 2, .num_layers = 1, .num_experts = 1, .counts = {5, 7}};
  const History first = remember(nullptr, load, 2, 1, 3);
  ASSERT_EQ(first.weights.size(), 2U);
  EXPECT_NEAR(first.weights[1], 1, 1e-6);
  EXPECT_NEAR(first.weights[0], std::sqrt(0.5), 1e-6);
  const History second = remember(&first, load, 2, 1, 3);
  EXPECT_EQ(second.steps_seen, 4);
  ASSERT_EQ(second.weights.size(), 3U);
  EXPECT_EQ(second.episodes.counts, (std::vector<int64_t>{7, 5, 7}));
  EXPECT_NEAR(second.weights[0], 0.5, 1e-6);
}

}  // namespace
}  // namespace trimtab
