// SPDX-License-Identifier: Apache-2.0
#include "live/worker.h"

#include <gtest/gtest.h>

#include <atomic>

#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace std::chrono_literals;

JobStatus outcome(Worker& worker) {
  worker.wait();
  return worker.status();
}

TEST(Worker, DoesOneJobAfterAnother) {
  Worker worker;
  EXPECT_EQ(worker.status(), JobStatus::kIdle);
  int sum = 0;
  for (int i = 1; i <= 100; ++i) {
    worker.start([&sum, i] { sum += i; });
    ASSERT_EQ(outcome(worker), JobStatus::kDone);
  }
  EXPECT_EQ(sum, 5050);
}

TEST(Worker, TellsHowAJobFailed) {
  Worker worker;
  worker.start([] { throw InvalidArgument("no"); });
  EXPECT_EQ(outcome(worker), JobStatus::kFailed);
  EXPECT_EQ(worker.failure(), "no");
  worker.start([] { throw 3; });
  EXPECT_EQ(outcome(worker), JobStatus::kFailed);
  worker.start([] { throw CommError(1, 2, "stage", "gone"); });
  EXPECT_EQ(outcome(worker), JobStatus::kBroken);
  EXPECT_THROW(worker.rethrow(), CommError);
  worker.start([] {});
  EXPECT_EQ(outcome(worker), JobStatus::kDone);
  EXPECT_EQ(worker.failure(), "");
}

TEST(Worker, IsWaitedForNoLongerThanSaid) {
  Worker worker;
  worker.wait();  // there is nothing to wait for
  std::atomic<bool> go_on = false;
  worker.start([&] {
    while (!go_on) std::this_thread::sleep_for(1ms);
  });
  worker.wait(Worker::Clock::now() + 5ms);
  EXPECT_EQ(worker.status(), JobStatus::kRunning);
  go_on = true;
  EXPECT_EQ(outcome(worker), JobStatus::kDone);
}

TEST(Worker, FinishesItsJobAtTheEnd) {
  bool done = false;
  {
    Worker worker;
    worker.start([&] {
      std::this_thread::sleep_for(20ms);
      done = true;
    });
  }
  EXPECT_TRUE(done);
}

TEST(Worker, LeavesAJobThatHangsBehind) {
  const auto go_on = std::make_shared<std::atomic<bool>>(false);
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  const auto begin = std::chrono::steady_clock::now();
  {
    Worker worker;
    worker.set_patience(50ms);
    worker.start([go_on, ended] {
      while (!*go_on) std::this_thread::sleep_for(1ms);
      *ended = true;
    });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  EXPECT_FALSE(*ended);
  *go_on = true;  // and it ends in peace
  while (!*ended) std::this_thread::sleep_for(1ms);
}

}  // namespace
}  // namespace trimtab
