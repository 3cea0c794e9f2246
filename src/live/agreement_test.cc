// SPDX-License-Identifier: Apache-2.0
#include "live/agreement.h"

#include <gtest/gtest.h>

#include "comm/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr JobStatus kAll[] = {JobStatus::kIdle, JobStatus::kRunning, JobStatus::kDone,
                              JobStatus::kFailed, JobStatus::kBroken};

TEST(RankStatus, SurvivesTheJourney) {
  for (const JobStatus status : kAll) {
    for (const uint64_t job : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 50}) {
      for (const bool late : {false, true}) {
        const RankStatus given{job, status, late};
        EXPECT_EQ(unpacked(packed(given)), given);
      }
    }
  }
  EXPECT_EQ(unpacked(0), RankStatus()) << "before the first exchange";
}

std::vector<uint64_t> statuses(std::initializer_list<RankStatus> ranks) {
  std::vector<uint64_t> all;
  for (const RankStatus& rank : ranks) all.push_back(packed(rank));
  return all;
}

TEST(Agreed, AJobIsOverOnlyWhenItIsOverOnEveryRank) {
  using enum JobStatus;
  EXPECT_EQ(agreed(statuses({{0, kIdle}, {0, kIdle}}), 0), Agreed::kDone);
  EXPECT_EQ(agreed(statuses({{3, kDone}, {3, kDone}, {3, kDone}}), 3), Agreed::kDone);
  EXPECT_EQ(agreed(statuses({{3, kDone}, {3, kRunning}, {3, kDone}}), 3), Agreed::kNotYet);
  EXPECT_EQ(agreed(statuses({{3, kDone}, {2, kDone}, {3, kDone}}), 3), Agreed::kNotYet);
  EXPECT_EQ(agreed(statuses({{3, kDone}, {4, kDone}}), 3), Agreed::kNotYet);
  EXPECT_EQ(agreed(statuses({{3, kFailed}, {3, kRunning}}), 3), Agreed::kNotYet);
  EXPECT_EQ(agreed(statuses({{3, kFailed}, {3, kDone}}), 3), Agreed::kFailed);
  EXPECT_EQ(agreed(statuses({{3, kDone}, {3, kBroken}}), 3), Agreed::kFailed);
  EXPECT_EQ(agreed(statuses({{3, kDone, true}}), 3), Agreed::kDone);
}

TEST(StatusExchange, BringsEveryRanksStatusToEveryRank) {
  for (const int ranks : rank_counts({1, 2, 4, 7})) {
    run_group(ranks, [ranks](Communicator& comm) {
      StatusExchange exchange(comm);
      for (const uint64_t status : exchange.end()) EXPECT_EQ(status, 0U) << "nothing was told yet";
      for (uint64_t step = 1; step < 20; ++step) {
        exchange.begin(packed({step, JobStatus::kDone, comm.rank() == 0}));
        const auto all = exchange.end();
        ASSERT_EQ(std::ssize(all), ranks);
        for (int r = 0; r < ranks; ++r)
          EXPECT_EQ(unpacked(all[r]), (RankStatus{step, JobStatus::kDone, r == 0}));
      }
      exchange.begin(7);  // and ends with the object
    });
  }
}

TEST(StatusExchange, APeerThatFailsIsACommError) {
  TRIMTAB_NEEDS_RANKS(2);
  EXPECT_THROW(run_group(2,
                         [](Communicator& comm) {
                           StatusExchange exchange(comm);
                           if (comm.rank() == 1) throw InvalidArgument("gone");
                           exchange.begin(1);
                           EXPECT_THROW(exchange.end(), CommError);
                         }),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab
