// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/layer_bench.h"

#include <gtest/gtest.h>

#include "bench/experts/expert_stage.h"

namespace trimtab::bench {
namespace {

constexpr ModelShape kSmall{"small", 64, 32, 6, 2};

TEST(LayerBench, WorkCountsActiveExpertsOnce) {
  const std::vector<Part> parts =
      layer_parts(kSmall, find_weight_dtype("bf16"), {{0, 4, 4, 5}, {1, 1, 1, 1}});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_DOUBLE_EQ(parts[0].ops, 2.0 * 3 * 64 * 32);
  EXPECT_DOUBLE_EQ(parts[1].ops, 2.0 * 3 * 64 * 32 * 2);
  EXPECT_DOUBLE_EQ(parts[1].bytes, 3.0 * 64 * 32 * 2);
}

// Fewer experts in memory than slots: slot 5 holds expert 5 % 4.
TEST(LayerBench, VerifiesAndMeasuresEachCombination) {
  for (const int threads : {1, 2}) {
    Team team(threads);
    Ceilings ceilings(chosen_loops(), team, size_t{1} << 22);
    std::vector<std::string> progress;
    const BenchContext context{
        .team = team,
        .ceilings = ceilings,
        .effort = {.seconds = 0, .least = 2, .most = 2},
        .cold_bytes = 4 * 3 * 64 * 32 * 2,
        .progress = [&](const std::string& what) { progress.push_back(what); }};
    const std::vector<LayerRow> rows =
        bench_layer(kSmall, find_weight_dtype("bf16"), {1, 33},
                    {RoutingKind::kNatural, RoutingKind::kSkewed}, context);
    ASSERT_EQ(rows.size(), 4U);
    EXPECT_EQ(rows[3].tokens, 33);
    EXPECT_EQ(rows[3].routing, RoutingKind::kSkewed);
    EXPECT_DOUBLE_EQ(rows[0].active_experts, 2.0);
    for (const LayerRow& row : rows) {
      EXPECT_GT(row.timing.ms.median, 0.0);
      EXPECT_TRUE(0 < row.pct_moving && row.pct_moving < 100) << row.pct_moving;
    }
    EXPECT_EQ(progress.back(), "small bf16, 33 tokens, skewed");
  }
}

}  // namespace
}  // namespace trimtab::bench
