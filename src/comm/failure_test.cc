// SPDX-License-Identifier: Apache-2.0
// A rank that throws, aborts, leaves or is late: its peers get a CommError that says who and what,
// soon.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Far below the default timeout of 60 s, far above what a loaded machine needs.
constexpr auto kSoon = std::chrono::seconds(20);

// What `wait` throws, or a failed test.
template <class Wait>
CommError comm_error(const Wait& wait) {
  const auto begin = steady_clock::now();
  try {
    wait();
  } catch (const CommError& error) {
    EXPECT_LT(steady_clock::now() - begin, kSoon);
    return error;
  }
  ADD_FAILURE() << "no CommError";
  return CommError(-1, -1, "", "");
}

class Failures : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Failures, testing::Values(2, 3, 4, 7),
                         testing::PrintToStringParamName());

TEST_P(Failures, TheExceptionOfARankIsRethrownAndPeersAreTold) {
  const int ranks = GetParam();
  std::atomic<int> told{0};
  try {
    run_ranks(ranks, [&](Communicator& comm) {
      if (comm.rank() == 1) throw std::out_of_range("boom");
      const CommError error = comm_error([&] { comm.barrier(); });
      EXPECT_EQ(error.rank(), comm.rank());
      EXPECT_EQ(error.peer(), 1);
      EXPECT_EQ(error.operation(), "barrier");
      EXPECT_NE(std::string(error.what()).find("boom"), std::string::npos) << error.what();
      ++told;
      throw error;
    });
    ADD_FAILURE() << "nothing was rethrown";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "boom");
  }
  EXPECT_EQ(told, ranks - 1);
}

// On its way out the exception destroys an end of a sub-group: a peer that waits there sees a rank
// that has left, and fails before the exception is caught. It is a consequence all the same.
TEST(FailureTest, TheCauseIsRethrownAlsoWhenAPeerNoticesItFirst) {
  std::atomic<bool> noticed{false};
  struct UntilNoticed {
    std::atomic<bool>& noticed;
    ~UntilNoticed() {
      while (!noticed) std::this_thread::yield();
    }
  };
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 0) {
      const auto copy = comm.duplicate();
      const CommError error = comm_error([&] { copy->barrier(); });
      noticed = true;
      throw error;
    }
    const UntilNoticed wait{noticed};
    const auto copy = comm.duplicate();
    throw std::out_of_range("boom");
  };
  EXPECT_THROW(run_ranks(2, body), std::out_of_range);
}

TEST(FailureTest, AnyTypeMayBeThrown) {
  EXPECT_THROW(run_ranks(2, [](Communicator&) { throw 7; }), int);
}

TEST_P(Failures, ARankThatLeavesIsNamedAtOnce) {
  const int ranks = GetParam();
  EXPECT_THROW(run_ranks(ranks,
                         [&](Communicator& comm) {
                           if (comm.rank() == 0) return;
                           const CommError error = comm_error([&] { comm.barrier(); });
                           EXPECT_EQ(error.peer(), 0) << error.what();
                           EXPECT_NE(std::string(error.what()).find("left"), std::string::npos)
                               << error.what();
                           throw error;
                         }),
               CommError);
}

TEST(FailureTest, ARankThatLeavesAfterItsLastOperationIsNoFailure) {
  for (int round = 0; round < 50; ++round) {
    run_ranks(4, [](Communicator& comm) { comm.barrier(); });
  }
}

// E10: a dead rank: waits end at a deadline, its experts go to replicas, unreachable ones are
//     reported.
TEST_P(Failures, ALateRankIsNamedWithTheTimeout) {
  const int ranks = GetParam();
  const int late = ranks - 1;
  std::atomic<int> told{0};
  run_ranks(ranks,
            [&](Communicator& comm) {
              if (comm.rank() == late) {
                while (told < ranks - 1) std::this_thread::sleep_for(milliseconds(1));
                EXPECT_THROW(comm.barrier(), CommError);  // the others have given up
                return;
              }
              std::vector<int64_t> sizes(ranks);
              const CommError error = comm_error([&] { comm.all_gather_v({}, {}, sizes).wait(); });
              EXPECT_EQ(error.rank(), comm.rank());
              EXPECT_EQ(error.peer(), late);
              EXPECT_EQ(error.operation(), "all_gather_v");
              const std::string text = error.what();
              EXPECT_NE(text.find("peer " + std::to_string(late)), std::string::npos) << text;
              EXPECT_NE(text.find("did not come within 50 ms"), std::string::npos) << text;
              ++told;
            },
            {.timeout = milliseconds(50)});
  EXPECT_EQ(told, ranks - 1);
}

TEST_P(Failures, AbortWakesWaitersInSubGroups) {
  const int ranks = GetParam();
  std::atomic<int> waiting{0};
  run_ranks(ranks, [&](Communicator& comm) {
    const auto pair = comm.duplicate();
    const auto others = comm.split(comm.rank() == 0 ? -1 : 0, 0);
    if (comm.rank() == 0) {
      while (waiting < ranks - 1) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(10));
      comm.abort("enough");
      comm.abort("a second reason");
      return;
    }
    // The last of the others stays away from their barrier; it waits in the duplicate.
    const bool last = comm.rank() == ranks - 1;
    ++waiting;
    const CommError error = comm_error([&] { (last ? *pair : *others).barrier(); });
    EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos) << error.what();
    EXPECT_EQ(error.peer(), last ? 0 : -1);  // rank 0 is not in the group of the others
  });
}

TEST_P(Failures, AbortOfASubGroupReachesItsParent) {
  const int ranks = GetParam();
  std::atomic<int> ready{0};
  run_ranks(ranks, [&](Communicator& comm) {
    const auto copy = comm.duplicate();
    ++ready;
    if (comm.rank() == 0) {
      while (ready < ranks) std::this_thread::yield();
      copy->abort("enough");
      return;
    }
    const CommError error = comm_error([&] { comm.barrier(); });
    EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos) << error.what();
  });
}

TEST_P(Failures, SubGroupsInheritTheTimeout) {
  const int ranks = GetParam();
  std::atomic<int> told{0};
  run_ranks(ranks,
            [&](Communicator& comm) {
              const auto copy = comm.duplicate();
              if (comm.rank() == 0) {
                while (told < ranks - 1) std::this_thread::sleep_for(milliseconds(1));
                return;
              }
              comm_error([&] { copy->barrier(); });
              ++told;
            },
            {.timeout = milliseconds(100)});
}

TEST(FailureTest, PollingFindsFailuresToo) {
  run_ranks(2, [](Communicator& comm) {
    if (comm.rank() == 0) return;
    std::vector<int64_t> sizes(2);
    Pending pending = comm.all_gather_v({}, {}, sizes);
    comm_error([&] {
      while (!pending.done()) std::this_thread::yield();
    });
    comm_error([&] {
      while (!comm.board()->posted(1)) std::this_thread::yield();
    });
  });
}

TEST(FailureTest, ImpossibleGroupsAreRefused) {
  const auto nothing = [](Communicator&) {};
  EXPECT_THROW(run_ranks(0, nothing), InvalidArgument);
  EXPECT_THROW(run_ranks(-1, nothing), InvalidArgument);
  EXPECT_THROW(run_ranks(1, nothing, {.timeout = milliseconds(0)}), InvalidArgument);
  run_ranks(2, [](Communicator& comm) { comm.barrier(); }, {.timeout = milliseconds::max()});
}

// A rank that gives up must not return to its caller, who may free what peers read, while a peer is
// reading.
template <class GiveUp>
void expect_wait_for_reader(const GiveUp& give_up, const GroupOptions& options) {
  std::atomic<bool> reading{false}, ended{false};
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 1) {
      const Board::Reading guard(*comm.board());
      reading = true;
      std::this_thread::sleep_for(milliseconds(100));
      ended = true;
      return;
    }
    while (!reading) std::this_thread::yield();
    give_up(comm);
    EXPECT_TRUE(ended);
  };
  run_ranks(2, body, options);
}

TEST(RankGroup, EndsWorkOnThreadsOfTheCaller) {
  auto ends = make_rank_group(3);
  ASSERT_EQ(ends.size(), 3U);
  for (int round = 0; round < 20; ++round) {  // each time on other threads
    std::vector<std::vector<std::byte>> all(3, std::vector<std::byte>(3));
    {
      std::vector<std::jthread> threads;
      for (auto& end : ends) {
        threads.emplace_back([&all, &end] {
          const auto own = static_cast<std::byte>(end->rank());
          std::vector<int64_t> bytes(3);
          Pending pending = end->all_gather_v({&own, 1}, all[end->rank()], bytes);
          pending.wait();
          pending.wait_released();
        });
      }
    }
    for (const auto& gathered : all) {
      EXPECT_EQ(gathered, (std::vector<std::byte>{std::byte{0}, std::byte{1}, std::byte{2}}));
    }
  }
}

TEST(RankGroup, AnEndThatIsAbortedFailsItsPeers) {
  const auto ends = make_rank_group(2);
  ends[1]->abort("had enough");
  const CommError error = comm_error([&] { ends[0]->barrier(); });
  EXPECT_NE(std::string(error.what()).find("had enough"), std::string::npos) << error.what();
  EXPECT_THROW(make_rank_group(0), InvalidArgument);
}

TEST(FailureTest, AbortWaitsForReaders) {
  expect_wait_for_reader([](Communicator& comm) { comm.abort("enough"); }, {});
}

TEST(FailureTest, ATimeoutWaitsForReaders) {
  const auto give_up = [](Communicator& comm) { EXPECT_THROW(comm.barrier(), CommError); };
  expect_wait_for_reader(give_up, {.timeout = milliseconds(10)});
}

}  // namespace
}  // namespace trimtab
