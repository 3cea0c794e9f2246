// SPDX-License-Identifier: Apache-2.0
#include "trimtab/measure_cost.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "experts/test_grouped.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

// Experts that take a known time: 200 microseconds for each that has rows, and 5 for each row.
class SleepingExperts final : public Experts {
 public:
  explicit SleepingExperts(int slots) : slots_(slots) {}
  Format format() const override { return Format::kStandard; }
  Left left() const override { return Left::kWeightAndSum; }
  int64_t hidden() const override { return 8; }
  int num_local() const override { return slots_; }
  DType dtype() const override { return DType::kF32; }
  size_t scratch_bytes(int64_t) const override { return 64; }
  void run(const Tokens& tokens, Rows, std::span<std::byte>, Team&) const override {
    ++runs;
    int64_t microseconds = 0;
    for (size_t slot = 0; slot < tokens.counts.size(); ++slot) {
      const int32_t rows = tokens.counts[slot];
      if (rows == 0) continue;
      used.insert(slot);
      microseconds += 200 + 5 * rows;
    }
    slept += microseconds;
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }
  mutable int runs = 0;
  mutable int64_t slept = 0;  // microseconds that were asked for
  mutable std::set<size_t> used;

 private:
  int slots_;
};

TEST(MeasureCost, FindsWhatExpertsTake) {
  const SleepingExperts experts(12);
  Team team(1);
  const CostModel cost = measure_cost(experts, team, {.seconds = 0.2});
  for (const int64_t rows : {1, 16, 64, 200}) {
    // A sleep is never shorter. How much longer it is depends on the machine: not tested.
    EXPECT_GE(cost.time(rows), (200 + 5 * rows) * 1'000'000) << rows;
  }
  EXPECT_GT(cost.time(256), cost.time(16));
  EXPECT_GE(std::ssize(cost.points()), 3);
  // Slots take turns, so that weights are as cold as in service.
  EXPECT_EQ(experts.used.size(), 12U);
}

// A start waits no longer than 50 ms: counted is what experts take, since how long a busy machine
// makes of it is its own affair.
TEST(MeasureCost, TakesFiftyMilliseconds) {
  const SleepingExperts experts(128);
  Team team(1);
  const CostModel cost = measure_cost(experts, team);
  EXPECT_LE(experts.slept, 55'000);
  EXPECT_GE(std::ssize(cost.points()), 3);
}

TEST(MeasureCost, MeasuresOneAndSixteenRowsHoweverLongTheyTake) {
  const SleepingExperts experts(3);
  Team team(1);
  const CostModel cost = measure_cost(experts, team, {.seconds = 0});
  ASSERT_EQ(cost.points().size(), 2U);
  EXPECT_EQ(cost.points()[0].rows, 1);
  EXPECT_EQ(cost.points()[1].rows, 16);
  EXPECT_LE(experts.runs, 3);
}

TEST(MeasureCost, RunsExpertsOfEveryFormat) {
  Team team(2);
  const auto table = make_table(5, DType::kF32, nullptr);
  for (const Format format : {Format::kStandard, Format::kBatched, Format::kIndirect}) {
    const auto experts = make_grouped_experts(table, kHidden, DType::kF32, format);
    const CostModel cost = measure_cost(*experts, team, {.seconds = 0.01, .most_rows = 64});
    EXPECT_GT(cost.time(1), 0);
    EXPECT_LE(cost.points().back().rows, 64);
  }
  const auto none = make_grouped_experts({}, kHidden, DType::kF32);
  EXPECT_THROW(measure_cost(*none, team), InvalidArgument);
}

TEST(BroadcastCost, EveryRankGetsRank0s) {
  const CostModel cost({{1, 700}, {9, 1500}}, {1000, 900, 800}, 7);
  run_ranks(3, [&](Communicator& comm) {
    const CostModel got = broadcast_cost(comm, comm.rank() == 0 ? &cost : nullptr);
    EXPECT_EQ(got.fingerprint(), cost.fingerprint());
    EXPECT_EQ(got.time(5), cost.time(5));
  });
}

}  // namespace
}  // namespace trimtab::test
