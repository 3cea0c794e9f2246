// SPDX-License-Identifier: Apache-2.0
#include "runtime_balancer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include "runtime_testing.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

constexpr int kExperts = 8, kLayers = 3;
constexpr int64_t kTokens = 12;

std::shared_ptr<MoeRuntime> make_runtime(int ranks) {
  const auto table = make_table(kExperts, 0, kExperts);
  auto runtime = std::make_shared<MoeRuntime>(*table, kTopK, RuntimeOptions{.ranks = ranks});
  for (int layer = 0; layer < kLayers; ++layer) runtime->add_layer(table);
  return runtime;
}

// A step in which most tokens pick two experts that are neighbours at first.
std::vector<float> run_step(MoeRuntime& runtime) {
  const auto x = random_floats(kTokens * kHidden, 3);
  const std::vector<float> weights(kTokens * kTopK, 0.5F);
  std::vector<float> outputs;
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<int64_t> ids;
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t first = t % 4 == 0 ? t % kExperts : 2 * layer;
      ids.insert(ids.end(), {first, first + 1});
    }
    std::vector<float> out(x.size());
    runtime.forward(layer,
                    {ConstRows(x.data(), kTokens, kHidden), ConstRows(ids.data(), kTokens, kTopK),
                     weights, Rows(out.data(), kTokens, kHidden)},
                    [] {});
    outputs.insert(outputs.end(), out.begin(), out.end());
  }
  return outputs;
}

// While plans are made and shared beside them, steps give the same bits, and every row is counted.
TEST(RuntimeBalancer, LevelsASkewAndChangesNoBit) {
  for (const int ranks : {2, 4}) {
    const auto still = make_runtime(1);
    const std::vector<float> wanted = run_step(*still);
    const auto runtime = make_runtime(ranks);
    RuntimeBalancer balancer(runtime, {.interval = 4, .split = SplitRule::kStatic}, 1);
    int64_t steps = 0;
    const auto level = [&] {
      const BalanceMetrics metrics = balancer.metrics();
      return metrics.rebalances > 0 && metrics.par_rows < 1.35;
    };
    for (; steps < 5000 && !level(); ++steps) {
      balancer.step(Phase::kDecode, true);
      ASSERT_EQ(run_step(*runtime), wanted) << steps;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(level()) << balancer.metrics().par_rows;
    balancer.finish(true);
    const BalanceMetrics metrics = balancer.metrics();
    EXPECT_GT(metrics.moves, 0);
    EXPECT_EQ(metrics.moved_bytes, 0);
    int64_t rows = 0;
    for (const int64_t of_rank : metrics.rank_tokens) rows += of_rank;
    EXPECT_EQ(rows, steps * kLayers * kTokens * kTopK);
    EXPECT_FALSE(balancer.take_events().empty());
    EXPECT_TRUE(balancer.take_events().empty());
    EXPECT_THROW(balancer.step(Phase::kDecode, true), InvalidArgument);
    EXPECT_EQ(run_step(*runtime), wanted);
  }
}

TEST(RuntimeBalancer, StepsThatAreNoLoadAndCountsThatBeginAnew) {
  const auto runtime = make_runtime(2);
  RuntimeBalancer balancer(runtime, {.interval = 1000, .split = SplitRule::kStatic}, 0);
  for (int step = 0; step < 6; ++step) {
    balancer.step(Phase::kDecode, step != 2);  // the second step is a trial run
    run_step(*runtime);
    if (step == 3) runtime->reset_load();
  }
  balancer.finish(true);
  int64_t rows = 0;
  for (const int64_t of_rank : balancer.metrics().rank_tokens) rows += of_rank;
  // Not those of the trial run, and not those that were forgotten before they were counted.
  EXPECT_EQ(rows, 4 * kLayers * kTokens * kTopK);
}

TEST(RuntimeBalancer, RefusesWhatDoesNotFit) {
  EXPECT_THROW(RuntimeBalancer(make_runtime(2), {.split = SplitRule::kSplit}, 1), InvalidArgument);
  EXPECT_THROW(RuntimeBalancer(make_runtime(2), {.split = SplitRule::kStatic}, -1),
               InvalidArgument);
  EXPECT_THROW(RuntimeBalancer(make_runtime(2), {.interval = 0, .split = SplitRule::kStatic}, 1),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab::python
