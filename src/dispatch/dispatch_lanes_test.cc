// SPDX-License-Identifier: Apache-2.0
// Two exchanges in flight at once, and many on one workspace.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "base/test_effort.h"
#include "comm/testing.h"
#include "dispatch/testing.h"

namespace trimtab {
namespace {

Scene make_scene(int ranks, int64_t tokens, uint32_t seed) {
  Scene scene{.tokens = std::vector<int64_t>(ranks, tokens), .top_k = 4};
  if (ranks > 1) scene.tokens.back() = 0;
  scene.slots = place(Placing::kRedundant, ranks, scene.num_experts);
  fill(scene, Routes::kUniform, seed);
  return scene;
}

// One call that goes on only as far as it need not wait, as a coroutine would.
class PolledCall {
 public:
  PolledCall(const Scene& scene, const Dispatcher& dispatcher, Lane& lane, std::span<float> out)
      : call_(scene, dispatcher, lane),
        workspace_(lane.workspace),
        mark_(workspace_.mark()),
        out_(out) {}

  // One step, if its stage is reached. True at the end.
  bool advance() {
    if (step_ == kStages) return true;
    if (!call_.exchange().poll(static_cast<Stage>(step_))) return false;
    if (step_ == 0) call_.compute(Left::kWeightAndSum);
    if (step_ == 1) {
      call_.finish(out_);
      more_ = call_.exchange().more();
    }
    if (++step_ == kStages && more_) {
      step_ = 0;
      workspace_.release(mark_);
    }
    return step_ == kStages;
  }

 private:
  static constexpr int kStages = 3;
  RankCall call_;
  Workspace& workspace_;
  const size_t mark_;
  std::span<float> out_;
  int step_ = 0;
  bool more_ = false;
};

// Dispatcher, ranks, and whether odd ranks poll the second call first.
using Parameters = std::tuple<const char*, int, bool>;
class Lanes : public testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override { TRIMTAB_SAMPLED_UNDER_SANITIZERS(3); }
};
INSTANTIATE_TEST_SUITE_P(All, Lanes,
                         testing::Combine(testing::ValuesIn(kKinds),
                                          testing::ValuesIn(rank_counts({1, 2, 4, 7})),
                                          testing::Bool()));

void expect_two_at_once(const char* name, int ranks, bool crosswise, int64_t row_budget) {
  const std::array<Scene, 2> scenes{make_scene(ranks, 9, 1), make_scene(ranks, 6, 2)};
  std::array<std::vector<float>, 2> out;
  for (size_t i = 0; i < 2; ++i) out[i].resize(scenes[i].x.size());
  run_scene_ranks(name, ranks, [&](Communicator& comm) {
    const auto other = comm.duplicate();
    DispatchShape shape = shape_of(scenes[0], 9, 4);
    shape.row_budget = row_budget;
    const TestedDispatcher dispatcher(name, shape, comm);
    const TestedDispatcher twin(name, shape, *other);  // for its groups
    Workspace workspace_a(comm.allocate(dispatcher->workspace_bytes()));
    Workspace workspace_b(other->allocate(dispatcher->workspace_bytes()));
    Team team(2);  // one thread drives both lanes
    Lane a{comm, workspace_a, team, dispatcher.groups()},
        b{*other, workspace_b, team, twin.groups()};
    for (int round = 0; round < 5; ++round) {
      workspace_a.release(0);
      workspace_b.release(0);
      PolledCall first(scenes[0], *dispatcher, a, out[0]);
      PolledCall second(scenes[1], *dispatcher, b, out[1]);
      const bool swap = crosswise && comm.rank() % 2 == 1;
      PolledCall& one = swap ? second : first;
      PolledCall& two = swap ? first : second;
      for (bool one_ended = false, two_ended = false; !one_ended || !two_ended;) {
        one_ended = one.advance();
        two_ended = two.advance();
        std::this_thread::yield();
      }
    }
  });
  for (size_t i = 0; i < 2; ++i) {
    bring_together(scenes[i], out[i]);
    EXPECT_EQ(difference(scenes[i], expect(scenes[i]), out[i], scenes[i].top_k + ranks), "")
        << "call " << i;
  }
}

// P8: all that belongs to a call lives in one object of that call, none on shared ones.
// K3: dispatch and combine can be polled or waited for, so other work goes between.
// B13: a mistake made elsewhere: state of a call kept on shared objects: two calls in flight
//     corrupt it.
TEST_P(Lanes, TwoExchangesInFlightDoNotDisturbEachOther) {
  const auto& [name, ranks, crosswise] = GetParam();
  expect_two_at_once(name, ranks, crosswise, 0);
}

// The same in several rounds, of which one exchange has more than the other.
TEST_P(Lanes, TwoExchangesInRoundsDoNotDisturbEachOther) {
  const auto& [name, ranks, crosswise] = GetParam();
  if (std::string_view(name) != "pull_batched")
    expect_two_at_once(name, ranks, crosswise, int64_t{ranks} * 4);
}

// K10: buffers: one set per microbatch, shared by all layers, reserved in advance; nothing from the
//     heap after the first calls.
TEST_P(Lanes, AHundredExchangesOnOneWorkspace) {
  const char* name = std::get<0>(GetParam());
  const int ranks = std::get<1>(GetParam());
  const Scene scene = make_scene(ranks, 7, 3);
  std::vector<float> once(scene.x.size()), out(scene.x.size());
  run_scene_ranks(name, ranks, [&](Communicator& comm) {
    const TestedDispatcher dispatcher(name, shape_of(scene, 7, 4), comm);
    Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
    Team team(1);
    Lane lane{comm, workspace, team, dispatcher.groups()};
    for (int round = 0; round < 100; ++round) {
      exchange_once(scene, *dispatcher, lane, Left::kSum, round == 0 ? once : out);
      workspace.release(0);
    }
  });
  bring_together(scene, once);
  bring_together(scene, out);
  EXPECT_EQ(difference(scene, expect(scene), once, scene.top_k + ranks), "");
  EXPECT_EQ(std::memcmp(once.data(), out.data(), out.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace trimtab
