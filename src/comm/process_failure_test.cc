// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes and fail: their peers get a CommError that says who and why, soon.
// (failure_test.cc has the same for threads, and more cases.)
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "comm/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto kSoon = std::chrono::seconds(20);

class ProcessFailures : public testing::Test {
 protected:
  void SetUp() override {
    if (!ranks_are_processes()) GTEST_SKIP() << "for ranks that are processes";
  }

  // What a barrier of `comm` throws, or a failed test.
  static CommError error_of_barrier(Communicator& comm) {
    const auto begin = steady_clock::now();
    try {
      comm.barrier();
    } catch (const CommError& error) {
      EXPECT_LT(steady_clock::now() - begin, kSoon);
      EXPECT_EQ(error.rank(), comm.rank());
      EXPECT_EQ(error.operation(), "barrier");
      return error;
    }
    ADD_FAILURE() << "no CommError";
    return CommError(-1, -1, "", "");
  }
  static bool says(const CommError& error, const char* part) {
    return std::string(error.what()).find(part) != std::string::npos;
  }
};

TEST_F(ProcessFailures, AnExceptionIsToldToAll) {
  EXPECT_THROW(run_group(2,
                         [](Communicator& comm) {
                           if (comm.rank() == 1) throw InvalidArgument("boom");
                           const CommError error = error_of_barrier(comm);
                           EXPECT_EQ(error.peer(), 1);
                           EXPECT_TRUE(says(error, "boom")) << error.what();
                           throw error;
                         }),
               InvalidArgument);
}

TEST_F(ProcessFailures, ARankThatLeavesIsNamed) {
  EXPECT_THROW(run_group(2,
                         [](Communicator& comm) {
                           if (comm.rank() == 0) return;
                           const CommError error = error_of_barrier(comm);
                           EXPECT_EQ(error.peer(), 0);
                           EXPECT_TRUE(says(error, "left")) << error.what();
                           throw error;
                         }),
               CommError);
}

// The late rank comes once the other one has given up, however busy the machine is. To ask after a
// collective that the other never joins is no wait, so it has no timeout.
TEST_F(ProcessFailures, ALateRankIsNamedWithTheTimeout) {
  EXPECT_THROW(run_group(2,
                         [](Communicator& comm) {
                           const auto aside = comm.duplicate();
                           const auto begin = steady_clock::now();
                           if (comm.rank() == 0) {
                             std::vector<int64_t> bytes(2);
                             Pending never = aside->all_gather_v({}, {}, bytes);
                             EXPECT_THROW(while (steady_clock::now() - begin < kSoon) never.done(),
                                          CommError);
                             comm.barrier();
                             ADD_FAILURE() << "the other has given up";
                           }
                           const CommError error = error_of_barrier(comm);
                           EXPECT_GE(steady_clock::now() - begin, milliseconds(400));
                           EXPECT_EQ(error.peer(), 0);
                           EXPECT_TRUE(says(error, "did not come within 400 ms")) << error.what();
                           throw error;
                         },
                         {.timeout = milliseconds(400)}),
               CommError);
}

TEST_F(ProcessFailures, AbortReachesSubGroups) {
  EXPECT_THROW(run_group(2,
                         [](Communicator& comm) {
                           const auto copy = comm.duplicate();
                           if (comm.rank() == 0) {
                             std::this_thread::sleep_for(milliseconds(20));
                             copy->abort("enough");
                             throw InvalidArgument("enough");
                           }
                           for (Communicator* group : {copy.get(), &comm}) {
                             const CommError error = error_of_barrier(*group);
                             EXPECT_TRUE(says(error, "enough")) << error.what();
                           }
                         }),
               InvalidArgument);
}

// Every wait that goes over hosts. `before` is done by all ranks before one of them stops; `wait`
// needs that one. A long message takes both ends; the barrier is for one that was quicker.
struct PeerWait {
  const char* name;
  std::function<void(Communicator&)> before, wait;
};

class Waits {
 public:
  // stopped: the rank that stops.
  Waits(Communicator& comm, int stopped)
      : stopped_(stopped), own_bytes_(comm.size()), bytes_(comm.size()), counts_(comm.size(), 1) {}

  static constexpr size_t kCount = 6;
  std::array<PeerWait, kCount> all() {
    const auto nothing = [](Communicator&) {};
    const auto wait = [this](Communicator& comm) {
      pending_.wait();
      comm.barrier();
    };
    return {{
        {"barrier", nothing, [](Communicator& comm) { comm.barrier(); }},
        {"gather", nothing,
         [this](Communicator& comm) { comm.all_gather_v({}, {}, bytes_).wait(); }},
        {"sum", nothing,
         [this](Communicator& comm) {
           const std::vector<float> send(comm.size());
           float sum = 0;
           comm.reduce_scatter_v(send, counts_, std::span(&sum, 1)).wait();
         }},
        {"split", nothing, [](Communicator& comm) { comm.duplicate(); }},
        {"long message from it", [this](Communicator& comm) { start(comm, kLong); }, wait},
        {"long message to it",
         [this](Communicator& comm) { start(comm, comm.rank() == stopped_ ? 0 : kLong); },
         [this](Communicator& comm) {
           pending_.wait();
           pending_.wait_released();
           comm.barrier();
         }},
    }};
  }

 private:
  static constexpr int64_t kLong = 4 << 20;

  void start(Communicator& comm, int64_t bytes) {
    std::ranges::fill(own_bytes_, bytes);
    send_.resize(own_bytes_.size() * bytes);
    received_.resize(own_bytes_.size() * kLong);
    pending_ = comm.all_to_all_v(send_, own_bytes_, received_, bytes_);
  }

  const int stopped_;
  std::vector<int64_t> own_bytes_, bytes_, counts_;
  std::vector<std::byte> send_, received_;
  Pending pending_;
};

// Somebody lets it go on again, and if nobody does, a process that is started here.
void stop_this_process() {
  const std::string later =
      cat("(sleep 60; kill -CONT ", ::getpid(), ") >/dev/null 2>&1 </dev/null &");
  ASSERT_EQ(std::system(later.c_str()), 0);
  std::raise(SIGSTOP);
}

// A peer that is stopped is a CommError on all others soon after the timeout, while it is stopped;
// and on itself when it goes on.
TEST_F(ProcessFailures, AStoppedRankHoldsNoWaitUp) {
  const int ranks = rank_counts({2, 3, 4}).back(), stopped = ranks - 1;
  for (size_t i = 0; i < Waits::kCount; ++i) {
    const auto body = [&](Communicator& comm) {
      Waits waits(comm, stopped);
      const PeerWait peer_wait = waits.all()[i];
      SCOPED_TRACE(cat(peer_wait.name, ", rank ", comm.rank()));
      std::vector<int64_t> pids(ranks), bytes(ranks);
      const int64_t own = ::getpid();
      comm.all_gather_v(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(pids)),
                        bytes)
          .wait_released();
      comm.barrier();
      peer_wait.before(comm);
      if (comm.rank() == stopped) stop_this_process();
      const auto begin = steady_clock::now();
      bool came = false;
      try {
        peer_wait.wait(comm);
        // The stopped rank may find all that the others had sent before they gave up, and a rank
        // that is still waiting when rank 0 has given up gets what it then sends. But none comes to
        // what they wait for next.
        came = true;
        comm.barrier();
        ADD_FAILURE() << "no CommError";
      } catch (const CommError& error) {
        EXPECT_LT(steady_clock::now() - begin, kSoon);
        EXPECT_FALSE(came && comm.rank() == 0);
        // A rank that is late to wait may hear first that rank 0 or the stopped one has given up.
        if (comm.rank() == 0) {
          EXPECT_EQ(error.peer(), stopped) << error.what();
          EXPECT_TRUE(says(error, "did not come within 600 ms")) << error.what();
        }
        if (comm.rank() == 0) {
          // So that the others have mostly given up too.
          std::this_thread::sleep_for(milliseconds(300));
          ::kill(static_cast<pid_t>(pids[stopped]), SIGCONT);
        }
        throw;
      }
    };
    EXPECT_THROW(run_group(ranks, body, {.timeout = milliseconds(600)}), CommError);
  }
}

}  // namespace
}  // namespace trimtab
