// SPDX-License-Identifier: Apache-2.0
// Every dispatcher over a group in which one operation of one rank is late, lost, corrupted or its
// last: what is late changes nothing, what is lost or dead gives typed errors on all ranks, and
// nothing hangs or touches memory that is not its own, whatever the bytes say.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <tuple>
#include <vector>

#include "base/cat.h"
#include "comm/fault_injection.h"
#include "comm/testing.h"
#include "dispatch/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using std::chrono::milliseconds;

constexpr int kRanks = 2;
constexpr int kFaultyRank = 1;

class Faults : public testing::TestWithParam<const char*> {
 protected:
  Faults() {
    scene_.tokens = {9, 7};
    scene_.top_k = 3;
    scene_.slots = place(Placing::kLinear, kRanks, scene_.num_experts);
    fill(scene_, Routes::kUniform, 4);
    out_.resize(scene_.x.size());
  }
  void SetUp() override { TRIMTAB_NEEDS_RANKS(kRanks); }

  // Two exchanges with the fault in them. Returns the operations that the faulty rank has started.
  int64_t exchange(const std::optional<Fault>& fault, milliseconds timeout) {
    int64_t operations = 0;
    const auto body = [&](Communicator& comm) {
      const TestedDispatcher dispatcher(GetParam(),
                                        shape_of(scene_, 9, 3, most_rows_of_a_slot(scene_)), comm);
      FaultyCommunicator faulty(comm, comm.rank() == kFaultyRank ? fault : std::nullopt);
      Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
      Team team(1);
      Lane lane{faulty, workspace, team, dispatcher.groups()};
      for (int round = 0; round < 2; ++round) {
        exchange_once(scene_, *dispatcher, lane, Left::kWeightAndSum, out_);
        workspace.release(0);
      }
      if (comm.rank() == kFaultyRank) operations = faulty.operations();
    };
    run_scene_ranks(GetParam(), kRanks, body, {.timeout = timeout});
    bring_together(scene_, out_);
    return operations;
  }

  // Calls test(operation) for every operation of the faulty rank.
  template <class Test>
  void at_every_operation(const Test& test) {
    std::vector<float> count{0, 0};
    count[kFaultyRank] = static_cast<float>(exchange(std::nullopt, std::chrono::seconds(30)));
    bring_together(count, std::vector<int64_t>{0, 1, 2});  // all processes must do the same
    const auto operations = static_cast<int64_t>(count[kFaultyRank]);
    EXPECT_GT(operations, 2);
    for (int64_t operation = 0; operation < operations; ++operation) {
      SCOPED_TRACE(cat("operation ", operation));
      test(operation);
    }
  }

  Scene scene_;
  std::vector<float> out_;
};
// Those that use the lane's own communicator.
INSTANTIATE_TEST_SUITE_P(All, Faults,
                         testing::Values("pull", "pull_batched", "fused", "all_to_all", "mc2",
                                         "packed_exact", "packed", "all_gather"),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST_P(Faults, WhatIsLateChangesNothing) {
  exchange(std::nullopt, std::chrono::seconds(30));
  const std::vector<float> expected = out_;
  at_every_operation([&](int64_t operation) {
    exchange(Fault{Fault::Kind::kDelay, operation, milliseconds(3)}, std::chrono::seconds(30));
    EXPECT_EQ(out_, expected);
  });
}

TEST_P(Faults, WhatIsLostIsACommErrorWithinTheTimeout) {
  at_every_operation([&](int64_t operation) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(
        exchange(Fault{Fault::Kind::kDrop, operation, milliseconds(150)}, milliseconds(40)),
        CommError);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  });
}

TEST_P(Faults, ARankThatEndsIsTheCauseOnAll) {
  at_every_operation([&](int64_t operation) {
    try {
      exchange(Fault{Fault::Kind::kKill, operation, {}}, std::chrono::seconds(30));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_STREQ(error.what(), Killed().what());
    }
  });
}

// No answer can be right; none may crash or hang.
TEST_P(Faults, CorruptedBytesAreSurvived) {
  at_every_operation([&](int64_t operation) {
    try {
      exchange(Fault{Fault::Kind::kCorrupt, operation, {}}, std::chrono::seconds(2));
    } catch (const Error&) {
    }
  });
}

}  // namespace
}  // namespace trimtab
