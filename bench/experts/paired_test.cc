// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/paired.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace trimtab::bench {
namespace {

TEST(Paired, TheRoofIsTheSlowerOfTheTwoForEachPart) {
  const Part parts[] = {{100, 1}, {100, 8}};
  EXPECT_DOUBLE_EQ(roof_seconds(parts, 50, 2), 2.0 + 4.0);
  EXPECT_DOUBLE_EQ(roof_seconds({}, 50, 2), 0.0);
}

TEST(Paired, QuartilesLieBetweenValues) {
  const Spread spread = spread_of({4, 1, 2, 3});
  EXPECT_DOUBLE_EQ(spread.low, 1.75);
  EXPECT_DOUBLE_EQ(spread.median, 2.5);
  EXPECT_DOUBLE_EQ(spread.high, 3.25);
}

// Of two threads: sleep is not time of a thread's own. The median of an odd number of pairs is one
// of them, so that rates follow from times.
TEST(Paired, CountsTheWorkOfItsCalls) {
  Team team(2);
  Ceilings ceilings(*available_loops().front(), team, size_t{1} << 22);
  const Part part{2e12, 3e6};  // seconds at any peak
  int64_t calls = 0;
  const Subject subject{.run =
                            [&](int64_t call) {
                              EXPECT_EQ(call, calls++);
                              std::this_thread::sleep_for(std::chrono::milliseconds(10));
                            },
                        .work = [&](int64_t) { return std::span(&part, 1); }};
  const Timing timing =
      measure(subject, DotKind::kF32, {.seconds = 0, .least = 3, .most = 9}, ceilings);
  EXPECT_EQ(timing.pairs, 3);
  EXPECT_EQ(calls, 4);  // the first is not timed
  EXPECT_GE(timing.ms.median, 10.0);
  EXPECT_DOUBLE_EQ(timing.gflops, 1e-6 * part.ops / timing.ms.median);
  EXPECT_DOUBLE_EQ(timing.pct_roof.median, timing.pct_peak.median);
  EXPECT_GT(timing.pct_peak.median, 100.0);
  EXPECT_LT(timing.pct_stream.median, timing.pct_peak.median);
}

}  // namespace
}  // namespace trimtab::bench
