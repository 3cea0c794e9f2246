// SPDX-License-Identifier: Apache-2.0
#include "trimtab/cost_model.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "trimtab/error.h"

namespace trimtab {
namespace {

const CostModel kKnee({{1, 700}, {4, 760}, {16, 1000}, {64, 3400}});

std::string refusal(std::vector<CostPoint> points, std::vector<int32_t> speeds = {},
                    int64_t wire = 0) {
  try {
    const CostModel model(std::move(points), std::move(speeds), wire);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(CostModel, GoesThroughItsPointsAndLinearlyBetweenAndBeyond) {
  EXPECT_EQ(kKnee.time(0), 0);
  for (const CostPoint& point : kKnee.points())
    EXPECT_EQ(kKnee.time(point.rows), point.picoseconds);
  EXPECT_EQ(kKnee.time(2), 720);
  EXPECT_EQ(kKnee.time(10), 880);
  EXPECT_EQ(kKnee.time(40), 2200);
  // 50 a row behind the last point, also where times are no longer looked up.
  EXPECT_EQ(kKnee.time(65), 3450);
  EXPECT_EQ(kKnee.time(100'064), 3400 + 50 * 100'000);
  EXPECT_EQ(CostModel({{1, 1'000'000'000}}).time(int64_t{1} << 40), CostModel::kMostPicoseconds);
  EXPECT_EQ(CostModel({{8, 80}}).time(3), 30);
}

// The inverse, by trying every number of rows.
TEST(CostModel, RowsWithinATimeAreTheMostThatTakeNoMore) {
  std::mt19937 rng(1);
  for (int i = 0; i < 40; ++i) {
    std::vector<CostPoint> points;
    CostPoint point;
    for (int p = 0; p < 1 + static_cast<int>(rng() % 6); ++p) {
      point.rows += 1 + static_cast<int64_t>(rng() % 700);
      point.picoseconds += static_cast<int64_t>(rng() % 3 == 0 && p > 0 ? 0 : 1 + rng() % 900);
      points.push_back(point);
    }
    const CostModel model(points);
    for (int64_t rows = 1; rows < 6000; ++rows) ASSERT_GE(model.time(rows), model.time(rows - 1));
    for (int64_t time = 0; time < 4000; ++time) {
      const int64_t rows = model.rows_within(time);
      ASSERT_LE(model.time(rows), time) << "case " << i;
      if (rows < int64_t{1} << 40) {
        ASSERT_GT(model.time(rows + 1), time) << "case " << i;
      }
    }
  }
}

TEST(CostModel, RowsCostOneEach) {
  const CostModel rows = CostModel::of_rows();
  EXPECT_TRUE(rows.is_proportional());
  EXPECT_EQ(rows.time(12345), 12345);
  EXPECT_EQ(rows.rows_within(12345), 12345);
  EXPECT_FALSE(kKnee.is_proportional());
  EXPECT_FALSE(CostModel({{1, 1}}, {1000, 500}).is_proportional());
  EXPECT_FALSE(CostModel({{1, 1}}, {}, 1).is_proportional());
  EXPECT_TRUE(CostModel({{2, 6}, {10, 30}}, {1000, 1000}).is_proportional());
}

TEST(CostModel, SpeedsStretchTimesRoundedUp) {
  const CostModel model({{1, 700}}, {1000, 500, 1500});
  EXPECT_EQ(model.time_on_rank(700, 0), 700);
  EXPECT_EQ(model.time_on_rank(700, 1), 1400);
  EXPECT_EQ(model.time_on_rank(700, 2), 467);
  for (int rank = 0; rank < 3; ++rank) {
    for (int64_t time = 0; time < 2000; ++time) {
      const int64_t work = model.work_within(time, rank);
      ASSERT_LE(model.time_on_rank(work, rank), time);
      ASSERT_GT(model.time_on_rank(work + 1, rank), time);
    }
  }
}

TEST(CostModel, FingerprintsTellModelsApart) {
  const auto of = [](std::vector<CostPoint> points, std::vector<int32_t> speeds = {},
                     int64_t wire = 0) {
    return CostModel(std::move(points), std::move(speeds), wire).fingerprint();
  };
  const uint64_t one = of({{1, 7}, {2, 9}});
  EXPECT_EQ(of({{1, 7}, {2, 9}}, {1000, 1000}), one);
  EXPECT_NE(of({{1, 7}, {2, 10}}), one);
  EXPECT_NE(of({{1, 7}}), one);
  EXPECT_NE(of({{1, 7}, {2, 9}}, {1000, 999}), one);
  EXPECT_NE(of({{1, 7}, {2, 9}}, {}, 1), one);
  EXPECT_NE(one, 0U);
}

TEST(CostModel, RefusesWhatIsNoCost) {
  EXPECT_EQ(refusal({}), "a cost model needs at least one point");
  EXPECT_EQ(refusal({{0, 5}}), "cost point 0 is at 0 rows, expected 1 to 1099511627776");
  EXPECT_EQ(refusal({{4, 5}, {4, 6}}), "cost point 1 is at 4 rows, expected 5 to 1099511627776");
  EXPECT_EQ(refusal({{4, 5}, {5, 4}}), "cost point 1 takes 4 ps, expected 5 to 281474976710656");
  EXPECT_EQ(refusal({{4, 0}}), "cost point 0 takes 0 ps, expected 1 to 281474976710656");
  EXPECT_EQ(refusal({{1, 1}}, {1000, 0}), "rank 1 has speed 0, expected 1 to 16000");
  EXPECT_EQ(refusal({{1, 1}}, {}, -1), "a row from another rank costs -1 ps");
  EXPECT_EQ(refusal({{1, 1}}), "");
}

TEST(CostModel, OfMeasuredTimesNeverFalls) {
  const std::vector<int64_t> rows = {1, 2, 4, 8};
  const CostModel model = cost_of_measured(rows, std::vector<double>{2e-6, 1.5e-6, 2.5e-6, 9e-6});
  EXPECT_EQ(model.time(1), 2'000'000);
  EXPECT_EQ(model.time(2), 2'000'000);
  EXPECT_EQ(model.time(4), 2'500'000);
  EXPECT_EQ(model.time(8), 9'000'000);
  EXPECT_THROW(cost_of_measured(rows, std::vector<double>{1, 2}), InvalidArgument);
  EXPECT_THROW(cost_of_measured(rows, std::vector<double>{1, 2, 3, -1}), InvalidArgument);
  EXPECT_THROW(cost_of_measured(rows, std::vector<double>{1, 2, 3, 1e9}), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
