// SPDX-License-Identifier: Apache-2.0
#include "trimtab/rank_loads.h"

#include <gtest/gtest.h>

#include <string>

#include "trimtab/error.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

std::vector<double> values(std::span<const double> loads) {
  return {loads.begin(), loads.end()};
}

// Two steps, one layer, four experts.
const Load kLoad{2, 1, 4, {6, 2, 0, 0, 0, 2, 4, 2}};

TEST(RankLoads, AddTheExpertsOfEachRank) {
  const std::vector<int64_t> load = {1, 10, 100, 1000, 10000};
  const auto of = [&](const Placement& placement, int layer) {
    return rank_loads(placement.logical(layer), placement.first_slots(), load);
  };
  EXPECT_EQ(of(Placement::linear(1, 5, 2), 0), (std::vector<double>{111, 11000}));
  const Placement permuted(2, 5, {2, 0, 3}, {0, 1, 2, 3, 4, 4, 0, 3, 2, 1});
  EXPECT_EQ(of(permuted, 0), (std::vector<double>{11, 0, 11100}));
  EXPECT_EQ(of(permuted, 1), (std::vector<double>{10001, 0, 1110}));
}

TEST(RankLoads, ShareAnExpertsTokensAmongItsSlots) {
  const std::vector<int32_t> logical = {0, 0, 1, 0, 1, 2}, first_slots = {0, 3, 6};
  EXPECT_EQ(rank_loads(logical, SlotRanges(first_slots), std::vector<int64_t>{6, 4, 1}),
            (std::vector<double>{6, 5}));
}

TEST(RankLoads, OfStepsAndOfTheWindow) {
  const RankLoads loads = rank_loads(Placement(1, 4, {2, 3}, {0, 1, 0, 2, 3}), kLoad);
  // Summed: 6, 4, 4, 2 -> ranks 3 + 4 and 3 + 4 + 2; steps: 5 and 3, then 2 and 6.
  EXPECT_EQ(values(loads.at(0, 0)), (std::vector<double>{5, 3}));
  EXPECT_EQ(values(loads.at(1, 0)), (std::vector<double>{2, 6}));
  EXPECT_EQ(values(loads.window(0)), (std::vector<double>{7, 9}));
  const Levelness level = levelness(loads, 0);
  EXPECT_DOUBLE_EQ(level.par, 9.0 / 8);
  EXPECT_DOUBLE_EQ(level.par_step_mean, (5.0 / 4 + 6.0 / 4) / 2);
  EXPECT_DOUBLE_EQ(level.par_step_worst, 6.0 / 4);
  EXPECT_EQ(level.worst_step, 1);
}

TEST(RankLoads, OneLayerAloneIsThatOfAll) {
  const Load load{2, 2, 3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  const Placement placement(2, 3, {2, 2}, {0, 1, 2, 0, 2, 2, 1, 0});
  const RankLoads all = rank_loads(placement, load);
  for (int layer = 0; layer < 2; ++layer) {
    const RankLoads one = rank_loads(placement, load, layer);
    EXPECT_EQ(one.num_layers(), 1);
    EXPECT_EQ(values(one.window(0)), values(all.window(layer)));
    const auto summed = sum_of_steps(load, layer, {0, 2});
    const RankLoads with_window =
        rank_loads(placement.logical(layer), placement.first_slots(), load, layer, summed);
    EXPECT_EQ(values(with_window.window(0)), values(all.window(layer)));
    EXPECT_EQ(values(with_window.at(1, 0)), values(all.at(1, layer)));
    EXPECT_THROW(rank_loads(placement.logical(layer), placement.first_slots(), load, layer,
                            std::span(summed).first(2)),
                 InvalidArgument);
    for (int64_t step = 0; step < 2; ++step)
      EXPECT_EQ(values(one.at(step, 0)), values(all.at(step, layer)));
  }
}

TEST(RankLoads, RefuseOtherShapes) {
  const Placement placement = Placement::linear(2, 3, 2);
  EXPECT_NO_THROW(rank_loads(placement, {1, 2, 3, std::vector<int64_t>(6)}));
  EXPECT_THROW(rank_loads(placement, {1, 1, 3, std::vector<int64_t>(3)}), InvalidArgument);
  EXPECT_THROW(rank_loads(placement, {1, 2, 4, std::vector<int64_t>(8)}), InvalidArgument);
  EXPECT_THROW(rank_loads(placement, {2, 2, 3, std::vector<int64_t>(6)}), InvalidArgument);
  EXPECT_THROW(rank_loads(placement, {1, 2, 3, std::vector<int64_t>(6)}, 2), InvalidArgument);
}

TEST(RecordedRankLoads, AreSumsOverTheSlotsOfEachRank) {
  const std::vector<int32_t> first = {1, 2, 3, 4},
                             second = {5, 6};  // 2 steps of 1 layer; two slots, and one
  const std::vector<std::span<const int32_t>> counts = {first, second, {}};
  const RankLoads loads = recorded_rank_loads(2, 1, counts);
  EXPECT_EQ(loads.num_ranks(), 3);
  EXPECT_EQ(values(loads.at(0, 0)), (std::vector<double>{3, 5, 0}));
  EXPECT_EQ(values(loads.at(1, 0)), (std::vector<double>{7, 6, 0}));
  EXPECT_EQ(values(loads.window(0)), (std::vector<double>{10, 11, 0}));
  EXPECT_EQ(recorded_rank_loads(0, 1, counts).num_steps(), 0);
  EXPECT_THROW(recorded_rank_loads(3, 1, counts), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
