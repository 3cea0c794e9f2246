// SPDX-License-Identifier: Apache-2.0
// After warm-up an exchange takes nothing from the heap, on any thread of the process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/allocation_count.h"
#include "dispatch/testing.h"

namespace trimtab {
namespace {

TEST(CountingNew, Counts) {
  const int64_t before = allocation_count();
  const std::vector<int> some(before + 1);  // a size that no compiler knows
  EXPECT_EQ(some.back(), 0);
  EXPECT_GT(allocation_count(), before);
}

constexpr int kRanks = 3;

Scene redundant_scene() {
  Scene scene{.tokens = {9, 0, 12}, .top_k = 4, .dtype = DType::kBF16};
  scene.slots = place(Placing::kRedundant, kRanks, scene.num_experts);
  fill(scene, Routes::kUniform, 1);
  return scene;
}

void expect_no_allocations(const char* kind, const Scene& scene) {
  std::atomic<int64_t> before{0}, after{-1};
  run_scene_ranks(kind, kRanks, [&](Communicator& comm) {
    const TestedDispatcher dispatcher(kind, shape_of(scene, 12, 4), comm);
    Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
    Team team(2);
    Lane lane{comm, workspace, team, dispatcher.groups()};
    const auto rank = static_cast<size_t>(comm.rank());
    const int64_t tokens = scene.tokens[rank];
    std::vector<bf16_t> x(static_cast<size_t>(tokens * scene.hidden));
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int k = 0; k < 4; ++k) {
        const int64_t token = scene.first_token(comm.rank()) + t;
        ids.push_back(scene.table ? scene.ids[static_cast<size_t>(token * 4 + k)]
                                  : scene.slot_of_pick(token, k));
      }
    }
    const std::vector<float> weights(ids.size(), 0.25F);
    const Buffer y =
        comm.allocate(static_cast<size_t>(dispatcher->max_rows() * scene.hidden) * sizeof(float));
    std::vector<float> out(x.size());
    for (int round = 0; round < 20; ++round) {
      comm.barrier();
      if (round == 3 && rank == 0) before = allocation_count();
      comm.barrier();
      const ExchangePtr exchange =
          dispatcher->dispatch({.x = ConstRows(x.data(), tokens, scene.hidden),
                                .ids = ids,
                                .weights = weights,
                                .top_k = 4,
                                .replicas = {scene.table.get(), scene.rule, scene.cost.get()}},
                               lane);
      exchange->wait(Stage::kArrived);
      const Tokens& arrived = exchange->tokens();
      const Rows rows(y.as<float>(), arrived.x.rows, scene.hidden);
      std::memset(y.data(), 0, y.bytes());
      exchange->send_back(rows, Left::kSum);
      exchange->wait(Stage::kReturned);
      exchange->finish(Rows(out.data(), tokens, scene.hidden));
      exchange->wait(Stage::kDrained);
      workspace.release(0);
    }
    comm.barrier();
    if (rank == 0) after = allocation_count();
    comm.barrier();
  });
  EXPECT_EQ(after - before, 0);
}

class Allocations : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Allocations, testing::ValuesIn(kKinds),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST_P(Allocations, AnExchangeMakesNoneAfterWarmUp) {
  expect_no_allocations(GetParam(), redundant_scene());
}

class SharingAllocations : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, SharingAllocations, testing::ValuesIn(kSharingKinds),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST_P(SharingAllocations, NorDoesSharingOut) {
  for (const SplitRule rule : kSplitRules) {
    Scene scene = redundant_scene();
    share_out(scene, rule);
    expect_no_allocations(GetParam(), scene);
  }
}

}  // namespace
}  // namespace trimtab
