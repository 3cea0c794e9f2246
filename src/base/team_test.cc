// SPDX-License-Identifier: Apache-2.0
#include "trimtab/team.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/allocation_count.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

class TeamOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, TeamOf, testing::Values(1, 2, 3, 4));

TEST_P(TeamOf, EveryIndexOnce) {
  Team team(GetParam());
  EXPECT_EQ(team.size(), GetParam());
  for (const int64_t count : {0, 1, 2, 3, 5, 64, 1000}) {
    std::vector<int> visits(count);  // each element is written by one index alone
    team.for_each(count, [&](int64_t i) { ++visits[i]; });
    EXPECT_EQ(visits, std::vector<int>(count, 1)) << count << " indices";
  }
}

TEST_P(TeamOf, WritesAreSeenAfterTheJoin) {
  Team team(GetParam());
  std::vector<int64_t> values(37);
  for (int64_t round = 1; round <= 2000; ++round) {
    team.for_each(37, [&](int64_t i) { values[i] += round * i; });
  }
  for (int64_t i = 0; i < 37; ++i) ASSERT_EQ(values[i], i * 2001000);
}

TEST_P(TeamOf, ExceptionsReachTheCallerAndTheTeamGoesOn) {
  Team team(GetParam());
  for (int round = 0; round < 50; ++round) {
    std::string text;
    try {
      team.for_each(100, [](int64_t i) {
        if (i == 13) throw InvalidArgument("thirteen");
      });
    } catch (const InvalidArgument& e) {
      text = e.what();
    }
    ASSERT_EQ(text, "thirteen");
    std::atomic<int64_t> sum{0};
    team.for_each(100, [&](int64_t i) { sum += i; });
    ASSERT_EQ(sum, 4950);
  }
}

TEST_P(TeamOf, OneOfManyExceptionsIsRethrown) {
  Team team(GetParam());
  std::atomic<int> thrown{0};
  EXPECT_THROW(team.for_each(1000,
                             [&](int64_t) {
                               ++thrown;
                               throw std::runtime_error("each");
                             }),
               std::runtime_error);
  EXPECT_GE(thrown, 1);
  EXPECT_LE(thrown, GetParam());  // no member goes on after an exception
}

TEST_P(TeamOf, ForEachDoesNotAllocate) {
  Team team(GetParam());
  std::vector<int64_t> values(64);
  auto body = [&](int64_t i) { values[i] = i; };
  team.for_each(64, body);
  const int64_t before = allocation_count();
  for (int round = 0; round < 100; ++round) team.for_each(64, body);
  EXPECT_EQ(allocation_count(), before);
}

TEST_P(TeamOf, AMemberRunsOneIndexAtATime) {
  Team team(GetParam());
  std::vector<std::atomic<int>> inside(GetParam());
  std::atomic<int64_t> sum{0}, at_once{0};
  for (const int64_t count : {1, 2, 200}) {
    sum = 0;
    team.for_each(count, [&](int64_t i, int member) {
      ASSERT_GE(member, 0);
      ASSERT_LT(member, GetParam());
      at_once += inside[member]++;
      if (i % 8 == 0) std::this_thread::yield();
      --inside[member];
      sum += i;
    });
    EXPECT_EQ(sum, count * (count - 1) / 2);
  }
  EXPECT_EQ(at_once, 0);
}

TEST_P(TeamOf, EachMemberHasScratchOfItsOwn) {
  Team team(GetParam());
  // What a member writes is there until its body ends, whatever the others write.
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{70000}}) {
    team.reserve_scratch(bytes);
    std::atomic<int> spoiled{0};
    team.for_each(100, [&](int64_t i, int member) {
      std::byte* const scratch = team.scratch(member);
      const auto value = static_cast<std::byte>(i);
      std::fill_n(scratch, bytes, value);
      std::this_thread::yield();
      spoiled += std::count(scratch, scratch + bytes, value) != static_cast<std::ptrdiff_t>(bytes);
    });
    EXPECT_EQ(spoiled, 0) << bytes;
    for (int m = 0; m < GetParam(); ++m)
      EXPECT_EQ(reinterpret_cast<uintptr_t>(team.scratch(m)) % 64, 0U);
  }
}

TEST_P(TeamOf, ReservingLessKeepsTheScratch) {
  Team team(GetParam());
  team.reserve_scratch(1000);
  for (int m = 0; m < GetParam(); ++m) team.scratch(m)[999] = std::byte{7};
  team.reserve_scratch(10);
  team.reserve_scratch(1000);
  for (int m = 0; m < GetParam(); ++m) EXPECT_EQ(team.scratch(m)[999], std::byte{7});
}

TEST(Team, HelpersTakePart) {
  Team team(3);
  std::mutex mutex;
  std::set<std::thread::id> members;
  std::atomic<int> inside{0};
  // Each index waits until three are under way, which only three threads can bring about.
  team.for_each(3, [&](int64_t) {
    ++inside;
    while (inside < 3) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    members.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(members.size(), 3U);
  EXPECT_EQ(members.count(std::this_thread::get_id()), 1U);
}

TEST(Team, TwoTeamsWorkSideBySide) {
  std::vector<int64_t> sums(2);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < 2; ++r) {
    ranks.emplace_back([&sums, r] {
      Team team(2);
      std::atomic<int64_t> sum{0};
      for (int round = 0; round < 200; ++round) team.for_each(10, [&](int64_t i) { sum += i; });
      sums[r] = sum;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(sums, (std::vector<int64_t>{9000, 9000}));
}

TEST(Team, NeedsAThread) {
  for (const int threads : {0, -3}) {
    try {
      Team team(threads);
      ADD_FAILURE() << threads << " threads accepted";
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find(std::to_string(threads)), std::string::npos);
    }
  }
}

// Sanitizers reserve more address space than the limit of this test.
#ifndef TRIMTAB_SANITIZED
TEST(TeamDeathTest, ThreadsThatCantStartAreAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start_too_many = [] {
    // Each thread's stack takes address space: some fit, 1000 do not.
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = rlim_t{256} << 20;
    setrlimit(RLIMIT_AS, &limit);
    try {
      Team team(1000);
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(start_too_many(), testing::ExitedWithCode(3),
              "can't start thread [0-9]+ of a team of 1000");
}
#endif

TEST_P(TeamOf, VisitorsHelpUntilTheyAreDismissed) {
  Team team(GetParam(), Team::Helpers::kVisitors);
  std::vector<int64_t> values(41);
  for (int64_t round = 1; round <= 200; ++round) {
    team.admit();
    std::vector<std::jthread> visitors;
    for (int member = 1; member < team.size(); ++member)
      visitors.emplace_back([&, member] { team.help(member); });
    for (int call = 0; call < 3; ++call) {
      team.for_each(41, [&](int64_t i) { values[i] += i; });
    }
    team.dismiss();
  }
  for (int64_t i = 0; i < 41; ++i) ASSERT_EQ(values[i], i * 600);
}

// A helper whose core is busy with something else must not hold up the call.
TEST(Team, DoesNotWaitForHelpersThatDoNotCome) {
  Team team(4, Team::Helpers::kVisitors);
  team.admit();
  for (int call = 0; call < 100; ++call) {
    std::vector<int> members(50, -1);
    team.for_each(50, [&](int64_t i, int member) { members[i] = member; });
    ASSERT_EQ(members, std::vector<int>(50, 0));
  }
  std::jthread late([&] { team.help(2); });
  while (team.counts().sleeps == 0) std::this_thread::yield();
  std::atomic<int> inside{0};
  team.for_each(2, [&](int64_t) {  // two threads have to be under way
    ++inside;
    while (inside < 2) std::this_thread::yield();
  });
  team.dismiss();
}

// The only system calls of a call are those that wake helpers, of which each has slept before. In a
// loop of short calls helpers have no time to fall asleep unless they lose their cores.
TEST(Team, ShortCallsMakeNoSystemCalls) {
  constexpr int64_t kCalls = 20000;
  Team team(3);
  std::atomic<int64_t> sum{0};
  for (int64_t call = 0; call < kCalls; ++call) team.for_each(3, [&](int64_t i) { sum += i; });
  const Team::Counts counts = team.counts();
  EXPECT_EQ(sum, 3 * kCalls);
  EXPECT_EQ(counts.forks, kCalls);
  EXPECT_LE(counts.wakes, counts.sleeps);
  EXPECT_LT(counts.wakes, kCalls / 10);
}

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(Team, SleepsWhileAHelperWorksForLong) {
  Team team(2);
  const double start = thread_cpu_seconds();
  for (int call = 0; call < 5; ++call) {
    std::atomic<int> inside{0};
    team.for_each(2, [&](int64_t, int member) {
      ++inside;
      while (inside < 2) std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (member == 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    });
  }
  EXPECT_LT(thread_cpu_seconds() - start, 0.1);  // it waits for 0.2 s
}

}  // namespace
}  // namespace trimtab
