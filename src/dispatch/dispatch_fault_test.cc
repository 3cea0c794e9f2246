// SPDX-License-Identifier: Apache-2.0
// Every dispatcher over a group in which one operation of one rank is late, lost, corrupted or its
// last: what is late changes nothing, what is lost or dead gives typed errors on all ranks, a bit
// that is another one is an error or damages one token, and nothing hangs or touches memory that is
// not its own, whatever the bytes say.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
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
constexpr int kRounds = 2;
constexpr std::chrono::seconds kLong(60);

class Faults : public testing::TestWithParam<const char*> {
 protected:
  Faults() {
    scene_.tokens = {9, 7};
    scene_.top_k = 3;
    scene_.slots = place(Placing::kLinear, kRanks, scene_.num_experts);
    fill(scene_, Routes::kUniform, 4);
    for (std::vector<float>& out : outs_) out.resize(scene_.x.size());
  }
  void SetUp() override { TRIMTAB_NEEDS_RANKS(kRanks); }

  // Exchanges with the fault in one of them, each into an output of its own. Returns the operations
  // that the faulty rank has started.
  int64_t exchange(const std::optional<Fault>& fault, milliseconds timeout) {
    int64_t operations = 0;
    const auto body = [&](Communicator& comm) {
      const TestedDispatcher dispatcher(GetParam(),
                                        shape_of(scene_, 9, 3, most_rows_of_a_slot(scene_)), comm);
      const auto aside = comm.duplicate();
      FaultyCommunicator faulty(comm, comm.rank() == kFaultyRank ? fault : std::nullopt,
                                aside.get());
      Workspace workspace(comm.allocate(dispatcher->workspace_bytes()));
      Team team(1);
      Lane lane{faulty, workspace, team, dispatcher.groups()};
      for (std::vector<float>& out : outs_) {
        exchange_once(scene_, *dispatcher, lane, Left::kWeightAndSum, out);
        workspace.release(0);
      }
      if (comm.rank() == kFaultyRank) operations = faulty.operations();
    };
    run_scene_ranks(GetParam(), kRanks, body, {.timeout = timeout});
    for (std::vector<float>& out : outs_) bring_together(scene_, out);
    return operations;
  }

  // Calls test(operation) for every operation of the faulty rank.
  template <class Test>
  void at_every_operation(const Test& test) {
    std::vector<float> count{0, 0};
    count[kFaultyRank] = static_cast<float>(exchange(std::nullopt, kLong));
    bring_together(count, std::vector<int64_t>{0, 1, 2});  // all processes must do the same
    operations_ = static_cast<int64_t>(count[kFaultyRank]);
    EXPECT_GT(operations_, 2);
    EXPECT_EQ(operations_ % kRounds, 0);
    for (int64_t operation = 0; operation < operations_; ++operation) {
      SCOPED_TRACE(cat("operation ", operation));
      test(operation);
    }
  }

  // Tokens of all exchanges that are not as in `expected`, bit by bit.
  int64_t damaged_tokens(const std::vector<float>& expected) const {
    const auto hidden = static_cast<size_t>(scene_.hidden);
    int64_t damaged = 0;
    for (const std::vector<float>& out : outs_) {
      for (size_t i = 0; i < out.size(); i += hidden) {
        damaged += std::memcmp(&out[i], &expected[i], hidden * sizeof(float)) != 0 ? 1 : 0;
      }
    }
    return damaged;
  }

  Scene scene_;
  std::array<std::vector<float>, kRounds> outs_;
  int64_t operations_ = 0;  // of the faulty rank in all rounds
};
INSTANTIATE_TEST_SUITE_P(All, Faults,
                         testing::Values("pull", "pull_batched", "fused", "all_to_all", "mc2",
                                         "packed_exact", "packed", "all_gather", "hybrid"),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST_P(Faults, WhatIsLateChangesNothing) {
  exchange(std::nullopt, kLong);
  const std::vector<float> expected = outs_[0];
  at_every_operation([&](int64_t operation) {
    exchange(Fault{Fault::Kind::kDelay, operation, milliseconds(3)}, kLong);
    EXPECT_EQ(damaged_tokens(expected), 0);
  });
}

// The lost operation starts when the group has failed, however long that takes, so it does not
// matter how busy the machine is.
TEST_P(Faults, WhatIsLostIsACommErrorOnceTheTimeoutIsOver) {
  at_every_operation([&](int64_t operation) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(exchange(Fault{Fault::Kind::kDrop, operation}, milliseconds(60)), CommError);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 2);
  });
}

TEST_P(Faults, ARankThatEndsIsTheCauseOnAll) {
  at_every_operation([&](int64_t operation) {
    try {
      exchange(Fault{Fault::Kind::kKill, operation}, kLong);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_STREQ(error.what(), Killed().what());
    }
  });
}

// Messages in which a bit that is another one must be noticed.
struct Noticed {
  std::string_view kind;
  int64_t operation;  // of one exchange
  int64_t bit = -1;   // -1: any bit of the message
};
// Records begin with a row; of a pick's slot the highest bits, and the bit that makes a slot of one
// rank into one of the other.
constexpr int64_t kFirstSlot = 8 * 33 * int64_t{sizeof(float)};
constexpr Noticed kNoticed[] = {
    // Terms.
    {"all_to_all", 0},
    {"mc2", 0},
    {"packed", 0},
    {"packed_exact", 0},
    {"all_gather", 0},
    {"hybrid", 0},
    // Counts.
    {"all_to_all", 1},
    {"mc2", 1, 5},
    // Slots.
    {"packed", 1, kFirstSlot + 30},
    {"packed", 1, kFirstSlot + 3},
    {"packed_exact", 1, kFirstSlot + 30},
    {"packed_exact", 1, kFirstSlot + 3},
    {"hybrid", 1, kFirstSlot + 30},
    {"all_gather", 2, 30},
};

// What must hold whatever the bytes say: terms, counts and slots that can't be are errors. Rows,
// weights and sums have no check, but those of one token are no other's.
TEST_P(Faults, ACorruptedBitIsAnErrorOrDamagesOneToken) {
  exchange(std::nullopt, kLong);
  const std::vector<float> expected = outs_[0];
  const std::string_view kind = GetParam();
  const bool sends = kind != "pull" && kind != "pull_batched" && kind != "fused";  // else it posts
  std::mt19937_64 random(11);
  at_every_operation([&](int64_t operation) {
    const int64_t of_round = operation % (operations_ / kRounds);
    // Processes take 100 times as long to make a group.
    const int num_random = !sends ? 0 : ranks_are_processes() ? 2 : 10;
    std::vector<int64_t> bits{0};
    for (int i = 0; i < num_random; ++i) bits.push_back(static_cast<int64_t>(random() >> 1));
    bool any = false;
    for (const Noticed& n : kNoticed) {
      if (n.kind != kind || n.operation != of_round) continue;
      any = any || n.bit < 0;
      bits.push_back(std::max<int64_t>(n.bit, 0));
    }
    for (const int64_t bit : bits) {
      SCOPED_TRACE(cat("bit ", bit));
      const bool must = any || std::ranges::any_of(kNoticed, [&](const Noticed& n) {
                          return n.kind == kind && n.operation == of_round && n.bit == bit;
                        });
      for (std::vector<float>& out : outs_) std::ranges::fill(out, -1.0F);
      try {
        exchange(Fault{.kind = Fault::Kind::kCorrupt, .operation = operation, .bit = bit}, kLong);
        EXPECT_FALSE(must) << "nobody has noticed it";
        EXPECT_LE(damaged_tokens(expected), sends ? 1 : 0);
      } catch (const InvalidArgument& error) {
        EXPECT_TRUE(sends) << error.what();
      } catch (const CommError& error) {
        ADD_FAILURE() << "an error without its cause: " << error.what();
      }
    }
  });
  exchange(std::nullopt, kLong);
  EXPECT_EQ(damaged_tokens(expected), 0);
}

}  // namespace
}  // namespace trimtab
