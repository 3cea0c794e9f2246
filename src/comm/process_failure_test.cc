// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes and fail: their peers get a CommError that says who and why, soon.
// (failure_test.cc has the same for threads, and more cases.)
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

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

TEST_F(ProcessFailures, ALateRankIsNamedWithTheTimeout) {
  EXPECT_THROW(run_group(2,
                         [](Communicator& comm) {
                           if (comm.rank() == 0) {
                             std::this_thread::sleep_for(milliseconds(600));
                             comm.barrier();
                             ADD_FAILURE() << "the other has given up";
                           }
                           const CommError error = error_of_barrier(comm);
                           EXPECT_EQ(error.peer(), 0);
                           EXPECT_TRUE(says(error, "did not come within 200 ms")) << error.what();
                           throw error;
                         },
                         {.timeout = milliseconds(200)}),
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
                           EXPECT_TRUE(says(error_of_barrier(*copy), "enough"));
                           EXPECT_TRUE(says(error_of_barrier(comm), "enough"));
                         }),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab
