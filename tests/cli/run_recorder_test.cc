// SPDX-License-Identifier: Apache-2.0
// What a run keeps of its steps, compared with everything in memory.
#include "cli/run/run_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cli/run/step_log.h"
#include "trimtab/par.h"
#include "trimtab/table.h"

namespace trimtab::cli {
namespace {

TEST(StepLog, GivesBackWhatEachWriterAppended) {
  constexpr int kWriters = 3, kRow = 700, kSteps = 100;
  StepLog log(kWriters, kRow);
  ASSERT_LT(log.block_steps(), kSteps / 2);  // several blocks, and the last one is not full
  ASSERT_NE(kSteps % log.block_steps(), 0);
  const auto number = [](int64_t step, int writer, int64_t i) {
    return static_cast<int32_t>(step * 10'000 + writer * 1'000 + i);
  };
  for (int writer = 0; writer < kWriters; ++writer) {
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<int32_t> row;
      for (int64_t i = 0; i < kRow; ++i) row.push_back(number(step, writer, i));
      log.append(writer, row);
    }
  }
  for (int writer = kWriters - 1; writer >= 0; --writer) {
    int64_t seen = 0;
    for (int64_t first = 0; first < kSteps; first += log.block_steps()) {
      const auto rows = log.read(writer, first);
      for (int64_t i = 0; i < std::ssize(rows); ++i)
        ASSERT_EQ(rows[i], number(first + i / kRow, writer, i % kRow));
      seen += std::ssize(rows) / kRow;
    }
    EXPECT_EQ(seen, kSteps);
  }
}

TEST(StepLog, MayBeEmpty) {
  StepLog log(2, 5);
  EXPECT_TRUE(log.read(1, 0).empty());
}

TEST(RunRecorder, SumsAndStepsAreThoseOfAllRanks) {
  constexpr int kLayers = 3, kExperts = 500, kRanks = 4, kSteps = 41;
  const Placement placement = Placement::linear(kLayers, kExperts, kRanks);
  RunRecorder recorder(placement, kRanks, kRanks,
                       {.rank_rows = true, .rank_times = true, .expert_rows = true});
  // Long enough that a step's time does not fit in 32 bits.
  const CostModel cost({{1, 1'000'000'000}, {8, 9'000'000'000}}, {1000, 900, 1100, 1000});
  std::vector<double> step_pars(kSteps);  // in time, mean over layers
  std::mt19937 random(11);
  std::vector<std::vector<int64_t>> rank_rows(kLayers, std::vector<int64_t>(kRanks));
  std::vector<int64_t> expert_rows(cells(kLayers, kExperts));
  std::vector<int64_t> steps_of_ranks;    // [steps, layers, ranks]
  std::vector<int32_t> steps_of_experts;  // [steps, layers, experts]
  std::vector<LoadRecorder> loads;
  for (int rank = 0; rank < kRanks; ++rank)
    loads.emplace_back(kLayers, placement.slots_of_rank(rank), 0);
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) loads[rank].begin_step();
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<int64_t> times(kRanks);
      for (int rank = 0; rank < kRanks; ++rank) {
        int64_t sum = 0, work = 0;
        for (int32_t& count : loads[rank].counts(layer)) {
          count = static_cast<int32_t>(random() % 9);
          sum += count;
          work += cost.time(count);
          expert_rows[layer * kExperts + std::ssize(steps_of_experts) % kExperts] += count;
          steps_of_experts.push_back(count);
        }
        rank_rows[layer][rank] += sum;
        steps_of_ranks.push_back(sum);
        times[rank] = cost.time_on_rank(work, rank);
      }
      step_pars[step] += par(times) / kLayers;
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      recorder.add_step(rank, rank, placement, loads[rank], Phase::kDecode, &cost);
      loads[rank].keep_step();
    }
  }
  recorder.merge(nullptr);
  EXPECT_EQ(recorder.steps(), kSteps);
  EXPECT_EQ(recorder.rank_rows(), rank_rows);
  EXPECT_EQ(recorder.expert_rows(), expert_rows);
  const RankLoads all = recorder.rank_loads();
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto rows = Table(steps_of_ranks, kRanks)[step * kLayers + layer];
      EXPECT_TRUE(std::ranges::equal(all.at(step, layer), rows)) << step << " " << layer;
    }
  }
  std::vector<int32_t> blocks;
  recorder.each_block([&](std::span<const int32_t> rows) {
    blocks.insert(blocks.end(), rows.begin(), rows.end());
  });
  EXPECT_EQ(blocks, steps_of_experts);
  std::vector<double> pars;
  for (const StepRange third : thirds(kSteps)) pars.push_back(window_par(all, third));
  EXPECT_EQ(recorder.par_by_third(), pars);
  const std::vector<double> in_time = recorder.par_time_by_third();
  ASSERT_EQ(in_time.size(), 3U);
  for (size_t i = 0; i < in_time.size(); ++i) {
    const StepRange third = thirds(kSteps)[i];
    const auto steps = std::span(step_pars).subspan(third.first, third.size());
    EXPECT_NEAR(in_time[i], mean_of(steps), 1e-12);
  }
}

}  // namespace
}  // namespace trimtab::cli
