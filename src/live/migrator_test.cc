// SPDX-License-Identifier: Apache-2.0
// Ranks that exchange experts: threads, or processes where mpiexec starts the test.
#include "trimtab/migrator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "comm/fault_injection.h"
#include "comm/testing.h"
#include "experts/expert_block.h"
#include "live/testing.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

using std::chrono::milliseconds;

constexpr int kLayers = 2;

Table make_experts(int num_experts, WeightFormat format) {
  return make_table(kLayers * num_experts, format, nullptr, 96);
}

// E5: moving weights while the old ones serve, through buffers.
TEST(Migrator, ExpertsGiveTheSameBitsWhereverTheyGo) {
  for (const int ranks : rank_counts({1, 2, 4, 7})) {
    for (const WeightFormat format : kFormats) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << name(format));
      std::vector<int> slots(ranks, 2);
      slots[0] = 3;
      if (ranks > 3) slots[3] = 0;
      const int num_slots = std::accumulate(slots.begin(), slots.end(), 0);
      const Table experts = make_experts(num_slots - 1, format);
      run_group(ranks, [&](Communicator& comm) {
        std::mt19937 random(static_cast<unsigned>(ranks));
        MigratingRank rank(random_placement(kLayers, num_slots - 1, slots, random), experts, 3,
                           comm);
        rank.expect_right();
        for (int round = 0; round < 5; ++round) {
          rank.switch_to(random_placement(kLayers, num_slots - 1, slots, random));
          rank.expect_right();
        }
      });
    }
  }
}

// Four ranks of two slots with seven experts, and a plan that moves some between all of them.
class MigratorFaults : public testing::Test {
 protected:
  static constexpr int kRanks = 4, kExperts = 7;
  const std::vector<int> slots = {2, 2, 2, 2};
  const Table experts = make_experts(kExperts, {Scheme::kW4A8, 32});
  const Placement from{kLayers, kExperts, slots, {0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 2, 3, 4, 5, 6, 0}};
  const Placement to{kLayers, kExperts, slots, {2, 4, 0, 6, 3, 5, 1, 1, 6, 5, 4, 3, 2, 1, 0, 0}};

  // Layer 0 is staged with something wrong: all ranks hear of it and nothing has changed. Then it
  // goes through.
  void expect_rolled_back(StageError error, const std::string& reason,
                          const MigratorOptions& options, int faulty_rank,
                          const std::function<void()>& stop_faults) const {
    run_group(kRanks, [&](Communicator& comm) {
      MigratingRank rank(from, experts, 2, comm,
                         comm.rank() == faulty_rank ? options : MigratorOptions{});
      const StageResult result = rank.stage(to, 0);
      EXPECT_FALSE(result.ok);
      EXPECT_EQ(result.error, error);
      EXPECT_EQ(result.reason, reason);
      EXPECT_EQ(rank.migrator.staged_layer(), -1);
      EXPECT_THROW(rank.migrator.commit(0), InvalidArgument);
      rank.expect_right();
      comm.barrier();
      if (comm.rank() == faulty_rank) stop_faults();
      rank.switch_to(to);
      rank.expect_right();
    });
  }
};

constexpr const char* kOfRank2 = "rank 2: expert 3 for slot 4 of layer 0, from slot 3 of rank 1: ";

TEST_F(MigratorFaults, DamageAnywhereInAMessageRollsBack) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  size_t bytes = 0;
  run_group(kRanks, [&](Communicator& comm) {
    const size_t own = make_slots(from, experts, 0, comm)->expert_bytes();
    if (comm.rank() == 0 || ranks_are_processes()) bytes = own;
  });
  // The header, then all eight parts of the expert: none is as long as a step.
  std::vector<size_t> places = {0, 9, 20, 60, 120, bytes - 1};
  for (size_t at = 128; at < bytes; at += 200) places.push_back(at);
  for (const size_t at : places) {
    SCOPED_TRACE(at);
    bool faulty = true;
    const auto flip = [&](const Move& t, std::span<std::byte> message) {
      if (faulty && t.slot == 4) message[at] ^= std::byte{4};
    };
    // Gaps between parts are sent too.
    expect_rolled_back(
        StageError::kDamaged,
        std::string(kOfRank2) + (at < 128 ? "its header is damaged" : "its weights are damaged"),
        {.received = flip}, 2, [&] { faulty = false; });
  }
}

TEST_F(MigratorFaults, AForeignMessageIsRefusedByWhatItIs) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  bool faulty = true;
  const auto other = make_mlp(Scheme::kBF16, 1, nullptr, 32, 16);
  const ExpertBlock foreign(kind_of(*other));
  const auto replace = [&](const Move& t, std::span<std::byte> message) {
    if (!faulty || t.slot != 4) return;
    ASSERT_LE(foreign.bytes(), message.size());
    foreign.fill(message.first(foreign.bytes()), *other, 0, 3);
  };
  expect_rolled_back(StageError::kShape, std::string(kOfRank2) + "32 -> 16, not 96 -> 37",
                     {.received = replace}, 2, [&] { faulty = false; });
}

TEST_F(MigratorFaults, AThrowingHookRollsBack) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  bool faulty = true;
  const auto fail = [&](const Move& t, std::span<std::byte>) {
    if (faulty && t.slot == 4) throw std::runtime_error("no luck");
  };
  expect_rolled_back(StageError::kHook, std::string(kOfRank2) + "no luck", {.received = fail}, 2,
                     [&] { faulty = false; });
}

TEST_F(MigratorFaults, ASlowRankIsWaitedFor) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  run_group(kRanks, [&](Communicator& comm) {
    MigratorOptions options;
    if (comm.rank() == 1)
      options.received = [](auto&&...) { std::this_thread::sleep_for(milliseconds(50)); };
    MigratingRank rank(from, experts, 2, comm, options);
    rank.switch_to(to);
    rank.expect_right();
  });
}

// On the wire, in every operation of a staging: the first and the last are agreements, the others
// rounds of messages.
TEST_F(MigratorFaults, DamageOnTheWireNeverComesThrough) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  for (int64_t operation = 0; operation < 5; ++operation) {
    SCOPED_TRACE(operation);
    run_group(kRanks, [&](Communicator& comm) {
      const auto inner = comm.duplicate();
      std::optional<Fault> fault;
      if (comm.rank() == 1) fault = Fault{Fault::Kind::kCorrupt, operation, {}};
      MigratingRank rank(from, experts, 2, comm,
                         std::make_unique<FaultyCommunicator>(*inner, fault));
      const StageResult result = rank.stage(to, 0);
      const bool message = operation == 1 || operation == 2;
      EXPECT_EQ(result.ok, !message) << result.reason;
      EXPECT_EQ(result.error, message ? StageError::kDamaged : StageError::kNone);
      rank.expect_right();
      rank.migrator.rollback();
      rank.switch_to(to);
      rank.expect_right();
    });
  }
}

TEST_F(MigratorFaults, ARankThatFailsIsACommErrorInTime) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  for (const Fault::Kind kind : {Fault::Kind::kKill, Fault::Kind::kDrop}) {
    for (int64_t operation = 0; operation < 4; ++operation) {
      SCOPED_TRACE(operation);
      const auto begin = std::chrono::steady_clock::now();
      std::atomic<int> heard = 0;
      const auto body = [&](Communicator& comm) {
        const auto inner = comm.duplicate(), aside = comm.duplicate();
        std::optional<Fault> fault;
        if (comm.rank() == 2) fault = Fault{kind, operation};
        MigratingRank rank(from, experts, 2, comm,
                           std::make_unique<FaultyCommunicator>(*inner, fault, aside.get()));
        try {
          comm.barrier();  // all have come so far
          rank.stage(to, 0);
        } catch (const CommError&) {
          ++heard;
          EXPECT_EQ(rank.migrator.staged_layer(), -1);
          rank.expect_right();
          throw;
        }
      };
      EXPECT_THROW(run_group(kRanks, body, {.timeout = milliseconds(200)}), std::exception);
      EXPECT_GE(heard, ranks_are_processes() ? 0 : kRanks - 1);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    }
  }
}

TEST_F(MigratorFaults, RanksWithOtherPlansDoNothing) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  run_group(kRanks, [&](Communicator& comm) {
    MigratingRank rank(from, experts, 2, comm);
    auto moves = plan_moves(from, to, 0);
    if (comm.rank() == 3) moves.pop_back();
    const StageResult result = rank.migrator.stage(moves);
    EXPECT_FALSE(result.ok);
    EXPECT_EQ(result.error, StageError::kPlan);
    EXPECT_EQ(result.reason, "rank 3 was given other moves than rank 0");
    EXPECT_EQ(result.messages_sent + result.messages_received, 0);
    // From a placement that is not the present one.
    const StageResult wrong = rank.migrator.stage(plan_moves(to, from, 0));
    EXPECT_EQ(wrong.error, StageError::kPlan);
    EXPECT_EQ(wrong.reason, "rank 0: slot 0 of layer 0 holds expert 0, not 2");
    // No plan at all.
    for (const std::vector<Move>& odd : {std::vector<Move>{{0, 0, 4, 4}, {1, 1, 4, 4}},
                                         {{0, 0, 4, 8}},
                                         {{0, -1, 4, 4}},
                                         {{2, 0, 4, 4}},
                                         {{0, 0, 4, 4}, {0, 0, 5, 5}}}) {
      EXPECT_EQ(rank.migrator.stage(odd).error, StageError::kPlan);
    }
    rank.expect_right();
    rank.switch_to(to);
    rank.expect_right();
  });
}

TEST_F(MigratorFaults, SparesThatAreMissingOrInUseRollBack) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  run_group(kRanks, [&](Communicator& comm) {
    MigratingRank rank(from, experts, comm.rank() == 0 ? 1 : 2, comm);
    const StageResult result = rank.stage(to, 0);
    EXPECT_EQ(result.error, StageError::kSpares);
    EXPECT_EQ(result.reason, "rank 0: 2 experts to bring to layer 0, there are 1 spares");
    EXPECT_EQ(result.messages_sent, 0);
    rank.expect_right();
  });
  run_group(kRanks, [&](Communicator& comm) {
    MigratingRank rank(from, experts, 2, comm);
    auto old = rank.slots->experts(0);
    ASSERT_TRUE(rank.stage(to, 0).ok);
    rank.migrator.commit(0);
    if (comm.rank() != 1) old = nullptr;
    const StageResult result = rank.stage(to, 1);
    EXPECT_EQ(result.error, StageError::kSpares);
    EXPECT_EQ(result.reason, "rank 1: experts of an earlier placement are still in use");
    old = nullptr;
    ASSERT_TRUE(rank.stage(to, 1).ok);
    rank.migrator.commit(1);
    rank.placement = to;
    rank.expect_right();
  });
}

TEST_F(MigratorFaults, NothingToMoveIsNothingStaged) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  run_group(kRanks, [&](Communicator& comm) {
    MigratingRank rank(from, experts, 2, comm);
    const StageResult result = rank.stage(from, 0);
    EXPECT_TRUE(result.ok);
    EXPECT_EQ(rank.migrator.staged_layer(), -1);
    EXPECT_EQ(result.bytes_sent + result.bytes_received, 0);
    EXPECT_TRUE(rank.stage(to, 1).ok);
    EXPECT_EQ(rank.migrator.staged_layer(), 1);
    EXPECT_THROW(rank.stage(to, 1), InvalidArgument);
    // Its spares are taken.
    EXPECT_EQ(rank.stage(to, 0).error, StageError::kSpares);
    EXPECT_TRUE(rank.migrator.is_staged(1));
    rank.migrator.rollback();
    rank.expect_right();
  });
}

TEST_F(MigratorFaults, SeveralLayersMayBeStagedAndSwitchedInAnyOrder) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  for (const bool keep_first : {true, false}) {
    run_group(kRanks, [&](Communicator& comm) {
      MigratingRank rank(from, experts, 4, comm);
      ASSERT_TRUE(rank.stage(to, 0).ok);
      ASSERT_TRUE(rank.stage(to, 1).ok);
      EXPECT_EQ(rank.migrator.staged_layer(), 0);
      rank.expect_right();  // the old ones
      rank.migrator.commit(1);
      if (!keep_first) {
        rank.migrator.rollback(0);
        EXPECT_EQ(rank.migrator.staged_layer(), -1);
        ASSERT_TRUE(rank.stage(to, 0).ok);
      }
      rank.migrator.commit(0);
      rank.placement = to;
      rank.expect_right();
    });
  }
}

TEST_F(MigratorFaults, ResultsCountWhatMoved) {
  TRIMTAB_NEEDS_RANKS(kRanks);
  run_group(kRanks, [&](Communicator& comm) {
    MigratingRank rank(from, experts, 2, comm);
    const auto moves = plan_moves(from, to, 0);
    int64_t sent = 0, received = 0;
    for (const Move& t : moves) {
      const int source = from.rank_of_slot(t.from_slot), target = from.rank_of_slot(t.slot);
      if (source == target) continue;
      sent += source == comm.rank();
      received += target == comm.rank();
    }
    const StageResult result = rank.migrator.stage(moves);
    EXPECT_TRUE(result.ok);
    EXPECT_EQ(result.messages_sent, sent);
    EXPECT_EQ(result.messages_received, received);
    EXPECT_EQ(result.bytes_sent, sent * static_cast<int64_t>(rank.slots->expert_bytes()));
    EXPECT_EQ(result.bytes_received, received * static_cast<int64_t>(rank.slots->expert_bytes()));
    EXPECT_GT(result.seconds, 0);
    rank.migrator.rollback();
  });
}

// The old experts run, and give the same bits, while the new ones come in another thread.
TEST(Migrator, StagesUnderTheForwardPass) {
  for (const int ranks : rank_counts({2, 4})) {
    const std::vector<int> slots(ranks, 3);
    const int num_experts = 3 * ranks - 2;
    const Table experts = make_experts(num_experts, Scheme::kBF16);
    run_group(ranks, [&](Communicator& comm) {
      std::mt19937 random(3), delays(static_cast<unsigned>(comm.rank()));
      const auto delay = [&](auto&&...) {
        std::this_thread::sleep_for(std::chrono::microseconds(delays() % 500));
      };
      MigratingRank rank(random_placement(kLayers, num_experts, slots, random), experts, 3, comm,
                         {.received = delay});
      for (int step = 0; step < 12; ++step) {
        const int layer = step % kLayers;
        std::vector<int32_t> logical;
        const Placement next = random_placement(kLayers, num_experts, slots, random);
        for (int l = 0; l < kLayers; ++l) {
          const auto of = l == layer ? next.logical(l) : rank.placement.logical(l);
          logical.insert(logical.end(), of.begin(), of.end());
        }
        const Placement target(kLayers, num_experts, slots, std::move(logical));
        StageResult result;
        std::exception_ptr error;
        std::jthread background([&] {
          try {
            result = rank.stage(target, layer);
          } catch (...) {
            error = std::current_exception();
          }
        });
        rank.expect_right();
        comm.barrier();
        rank.expect_right();
        background.join();
        if (error) std::rethrow_exception(error);
        ASSERT_TRUE(result.ok) << result.reason;
        if (rank.migrator.staged_layer() >= 0) rank.migrator.commit(layer);
        rank.placement = target;
      }
      rank.expect_right();
    });
  }
}

TEST(Migrator, RefusesWhatDoesNotFit) {
  run_group(1, [&](Communicator& comm) {
    const Table experts = make_experts(2, Scheme::kF32);
    const auto slots = make_slots(Placement::linear(kLayers, 2, 1), experts, 1, comm);
    EXPECT_THROW(Migrator(*slots, std::vector<int32_t>{0, 3}, comm.duplicate()), InvalidArgument);
    EXPECT_THROW(Migrator(*slots, std::vector<int32_t>{0, 2, 4}, comm.duplicate()),
                 InvalidArgument);
    for (const int in_flight : {0, 9}) {
      EXPECT_THROW(Migrator(*slots, std::vector<int32_t>{0, 2}, comm.duplicate(),
                            {.max_in_flight = in_flight}),
                   InvalidArgument);
    }
  });
}

}  // namespace
}  // namespace trimtab::test
