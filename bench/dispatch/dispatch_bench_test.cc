// SPDX-License-Identifier: Apache-2.0
#include "bench/dispatch/dispatch_bench.h"

#include <gtest/gtest.h>

#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

class EachSubject : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, EachSubject,
                         testing::Values("source", "pull", "pull_batched", "fused", "all_gather",
                                         "all_to_all", "mc2", "packed", "hybrid"),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST_P(EachSubject, IsVerifiedAndTimed) {
  GroupOptions options;
  if (GetParam() == std::string("hybrid")) options.hosts = {0, 1, 1};
  run_ranks(
      3,
      [](Communicator& comm) {
        const DispatchCase subject{GetParam(), 9, 64, 4, 12, DType::kBF16};
        const DispatchRow row = bench_dispatch(comm, subject, {.seconds = 0, .least = 3});
        EXPECT_EQ(row.rounds, 3);
        EXPECT_GT(row.ms_dispatch.median, 0);
        EXPECT_GT(row.ms_combine.median, 0);
        EXPECT_GT(row.ms_memcpy.median, 0);
        EXPECT_GE(row.pct_of_memcpy.high, row.pct_of_memcpy.low);
      },
      options);
}

// grouped leaves parts of sums, which is not what is asked for: the verification must say so.
TEST(BenchDispatch, AWrongResultIsAnError) {
  EXPECT_THROW(run_ranks(2,
                         [](Communicator& comm) {
                           bench_dispatch(comm, {"grouped", 5, 32, 4, 8, DType::kF32},
                                          {.seconds = 0, .least = 1});
                         }),
               Error);
}

}  // namespace
}  // namespace trimtab::bench
