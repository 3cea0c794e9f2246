// SPDX-License-Identifier: Apache-2.0
#include "bench/dispatch/whole_layer.h"

#include <gtest/gtest.h>

#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

const LayerCase kCase = {.dispatchers = {"pull", "fused", "packed", "all_gather"},
                         .tokens = 9,
                         .hidden = 64,
                         .top_k = 3,
                         .num_experts = 8,
                         .intermediate = 32,
                         .overlap = false};

TEST(WholeLayer, DispatchersAreComparedAndTimedInTurns) {
  run_ranks(3, [](Communicator& comm) {
    const auto rows = bench_whole_layer(comm, kCase, {.seconds = 0, .least = 3});
    ASSERT_EQ(rows.size(), 4U);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].dispatcher, kCase.dispatchers[i]);
      EXPECT_EQ(rows[i].rounds, 3);
      EXPECT_GT(rows[i].cpu_ms_layer.median, 0);
      EXPECT_GE(rows[i].ms_layer.high, rows[i].ms_layer.low);
      EXPECT_EQ(rows[i].ms_overlapped.median, 0);
    }
    EXPECT_EQ(rows[0].pct_of_first.low, 100);
    EXPECT_EQ(rows[0].pct_of_first.high, 100);
  });
}

TEST(WholeLayer, TwoMicrobatchesOverHosts) {
  LayerCase subject = kCase;
  subject.dispatchers = {"packed", "hybrid"};
  subject.overlap = true;
  run_ranks(2,
            [&](Communicator& comm) {
              for (const WholeLayerRow& row :
                   bench_whole_layer(comm, subject, {.seconds = 0, .least = 3})) {
                EXPECT_GT(row.ms_transfer.median, 0);
                EXPECT_GT(row.ms_overlapped.median, 0);
                EXPECT_LT(row.ms_transfer.low, row.ms_layer.high);
              }
            },
            {.hosts = {0, 1}});
}

TEST(WholeLayer, PartsOfSumsAreRefused) {
  LayerCase subject = kCase;
  subject.dispatchers = {"grouped"};
  EXPECT_THROW(
      run_ranks(2, [&](Communicator& comm) { bench_whole_layer(comm, subject, {.seconds = 0}); }),
      InvalidArgument);
}

}  // namespace
}  // namespace trimtab::bench
