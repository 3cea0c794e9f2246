// SPDX-License-Identifier: Apache-2.0
// A rank that throws in the middle of an exchange, leaves early or is late: its peers get a
// CommError, and nobody reads memory that has gone (ASan and TSan are the judges of that).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "dispatch/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Far below the default timeout of 60 s.
constexpr auto kSoon = std::chrono::seconds(30);

struct Boom : std::runtime_error {
  Boom() : std::runtime_error("boom") {}
};

using Parameters = std::tuple<const char*, int>;
class DispatchFailures : public testing::TestWithParam<Parameters> {
 protected:
  DispatchFailures() {
    const int ranks = std::get<1>(GetParam());
    scene_.tokens.assign(ranks, kTokens);
    scene_.hidden = 512;
    scene_.top_k = 4;
    scene_.slots = place(Placing::kLinear, ranks, scene_.num_experts);
    fill(scene_, Routes::kUniform, 1);
    out_.resize(scene_.x.size());
  }

  int ranks() const { return scene_.ranks(); }

  // A rank of the lane's group is named by its number there; one of another group by its number in
  // that.
  void expect_blame(const CommError& error, int peer) const {
    const std::string_view kind = std::get<0>(GetParam());
    if (kind == "hybrid" || kind == "all_gather_levels") return;
    EXPECT_EQ(error.peer(), peer) << error.what();
  }

  // One exchange; `fault(step)` runs before the steps 0 dispatch, 1 experts, 2 finish, 3 drain.
  void exchange(Communicator& comm, const std::function<void(int)>& fault) {
    const TestedDispatcher dispatcher(std::get<0>(GetParam()), shape_of(scene_, kTokens, 4), comm);
    auto workspace = std::make_unique<Workspace>(comm.allocate(dispatcher->workspace_bytes()));
    Team team(1);
    Lane lane{comm, *workspace, team, dispatcher.groups()};
    fault(0);
    RankCall call(scene_, *dispatcher, lane);
    call.exchange().wait(Stage::kArrived);
    fault(1);
    call.compute(Left::kWeightAndSum);
    call.exchange().wait(Stage::kReturned);
    fault(2);
    call.finish(out_);
    fault(3);
    call.exchange().wait(Stage::kDrained);
  }

  static constexpr int64_t kTokens = 16;
  Scene scene_;
  std::vector<float> out_;
};
INSTANTIATE_TEST_SUITE_P(All, DispatchFailures,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Values(2, 4)));

TEST_P(DispatchFailures, ThrowingAtAnyStepIsToldToPeersAndRethrown) {
  for (int round = 0; round < 12; ++round) {
    const int step = round % 4;
    std::atomic<int> told{0}, unharmed{0};
    const auto begin = steady_clock::now();
    EXPECT_THROW(run_scene_ranks(std::get<0>(GetParam()), ranks(),
                                 [&](Communicator& comm) {
                                   if (comm.rank() == 1) {
                                     exchange(comm, [&](int at) {
                                       if (at == step) throw Boom();
                                     });
                                     return;
                                   }
                                   try {
                                     exchange(comm, [](int) {});
                                     ++unharmed;
                                   } catch (const CommError& error) {
                                     expect_blame(error, 1);
                                     ++told;
                                     throw;
                                   }
                                 }),
                 Boom);
    EXPECT_LT(steady_clock::now() - begin, kSoon);
    // A rank that has all it needs may end before the news reaches it, but only if the fault came
    // after all data.
    EXPECT_EQ(told + unharmed, ranks() - 1);
    if (step < 2) {
      EXPECT_EQ(unharmed, 0) << "step " << step;
    }
  }
}

TEST_P(DispatchFailures, ARankThatLeavesEarlyIsNamed) {
  EXPECT_THROW(run_scene_ranks(std::get<0>(GetParam()), ranks(),
                               [&](Communicator& comm) {
                                 if (comm.rank() == 0) return;
                                 try {
                                   exchange(comm, [](int) {});
                                 } catch (const CommError& error) {
                                   expect_blame(error, 0);
                                   throw;
                                 }
                                 ADD_FAILURE() << "no CommError on rank " << comm.rank();
                               }),
               CommError);
}

TEST_P(DispatchFailures, ASlowRankIsNamed) {
  std::atomic<int> told{0};
  const auto body = [&](Communicator& comm) {
    const bool slow = comm.rank() == ranks() - 1;
    try {
      exchange(comm, [&](int at) {
        while (slow && at == 1 && told < ranks() - 1) std::this_thread::sleep_for(milliseconds(1));
      });
      ADD_FAILURE() << "no CommError on rank " << comm.rank();
    } catch (const CommError& error) {
      expect_blame(error, ranks() - 1);
      ++told;
    }
  };
  run_scene_ranks(std::get<0>(GetParam()), ranks(), body, {.timeout = milliseconds(300)});
  EXPECT_EQ(told, ranks());
}

// Dropping an exchange half way is a failure of this rank, even if no exception passes.
TEST_P(DispatchFailures, DroppingAnExchangeIsToldToPeers) {
  std::atomic<int> told{0};
  run_scene_ranks(std::get<0>(GetParam()), ranks(), [&](Communicator& comm) {
    if (comm.rank() == 0) {
      const TestedDispatcher dispatcher(std::get<0>(GetParam()), shape_of(scene_, kTokens, 4),
                                        comm);
      Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
      Team team(1);
      Lane lane{comm, workspace, team, dispatcher.groups()};
      RankCall call(scene_, *dispatcher, lane);
      return;
    }
    try {
      exchange(comm, [](int) {});
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("dropped"), std::string::npos) << error.what();
      ++told;
    }
  });
  EXPECT_EQ(told, ranks() - 1);
}

}  // namespace
}  // namespace trimtab
