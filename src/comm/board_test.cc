// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/testing.h"
#include "trimtab/communicator.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

class Boards : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Boards, testing::ValuesIn(rank_counts({1, 2, 3, 4, 7})),
                         testing::PrintToStringParamName());

// Memory behind item n is written again as soon as the rule allows it: a race here is one that TSan
// sees.
TEST_P(Boards, ItemsAreReadInPlaceAndMemoryMayBeReusedAfterTheNextPost) {
  const int ranks = GetParam();
  run_group(ranks, [&](Communicator& comm) {
    Board& board = *comm.board();
    const Buffer memory = comm.allocate(2 * sizeof(int));
    for (int round = 1; round <= 100; ++round) {
      int& mine = memory.as<int>()[round % 2];
      mine = comm.rank() * 1000 + round;
      const uint64_t n = board.post(&mine);
      EXPECT_EQ(n, static_cast<uint64_t>(round));
      board.wait_posted(n, "test");
      EXPECT_TRUE(board.posted(n));
      EXPECT_FALSE(board.posted(n + 1));
      const Board::Reading reading(board);
      for (int r = 0; r < ranks; ++r)
        EXPECT_EQ(*static_cast<const int*>(board.item(r, n)), r * 1000 + round);
    }
    comm.barrier();
  });
}

TEST(BoardTest, ARankMayRunAheadAndThenWaitsForTheSlowest) {
  std::atomic<int> ahead{0};
  run_ranks(2, [&](Communicator& comm) {
    Board& board = *comm.board();
    std::vector<int> items(20);
    std::iota(items.begin(), items.end(), 1);
    // Also while rank 1 may read item 1, which it may until its own post 2.
    const auto expect_the_other_waits = [&] {
      while (ahead < 1 + Board::kMaxAhead) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(ahead, 1 + Board::kMaxAhead);
    };
    if (comm.rank() == 1) expect_the_other_waits();
    for (const int& item : items) {
      const uint64_t n = board.post(&item);
      if (comm.rank() == 0) ++ahead;
      if (comm.rank() == 1) {
        board.wait_posted(n, "test");
        if (n == 1) expect_the_other_waits();
        const Board::Reading reading(board);
        EXPECT_EQ(*static_cast<const int*>(board.item(0, n)), static_cast<int>(n));
      }
    }
    comm.barrier();
  });
}

TEST(BoardTest, GroupsHaveBoardsOfTheirOwn) {
  TRIMTAB_NEEDS_RANKS(2);
  run_group(2, [](Communicator& comm) {
    const auto other = comm.duplicate();
    const Buffer a = comm.allocate(sizeof(int)), b = other->allocate(sizeof(int));
    *a.as<int>() = 1;
    *b.as<int>() = 2;
    EXPECT_EQ(comm.board()->post(a.data()), 1U);
    EXPECT_EQ(other->board()->post(b.data()), 1U);
    other->board()->wait_posted(1, "test");
    comm.board()->wait_posted(1, "test");
    {
      const Board::Reading reading(*comm.board());
      EXPECT_EQ(*static_cast<const int*>(comm.board()->item(1 - comm.rank(), 1)), 1);
      EXPECT_EQ(*static_cast<const int*>(other->board()->item(1 - comm.rank(), 1)), 2);
    }
    comm.barrier();
  });
}

// What pull relies on: memory of allocate() is the same memory at the same address on all ranks,
// other memory only where ranks are threads.
TEST(BoardTest, SharesWhatIsAllocated) {
  TRIMTAB_NEEDS_RANKS(2);
  run_group(2, [](Communicator& comm) {
    const Buffer memory = comm.allocate(10000);
    const int elsewhere = 0;
    EXPECT_TRUE(comm.board()->shares(memory.data(), memory.bytes()));
    EXPECT_EQ(comm.board()->shares(&elsewhere, sizeof elsewhere), !ranks_are_processes());
    EXPECT_TRUE(comm.board()->shares(nullptr, 0));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0U);
    for (size_t i = 0; i < memory.bytes(); ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
    comm.board()->post(memory.data());
    comm.board()->wait_posted(1, "test");
    {
      // Each writes into the other's memory.
      const Board::Reading reading(*comm.board());
      auto* theirs =
          static_cast<std::byte*>(const_cast<void*>(comm.board()->item(1 - comm.rank(), 1)));
      theirs[9999] = static_cast<std::byte>(comm.rank() + 1);
    }
    comm.barrier();
    EXPECT_EQ(memory.data()[9999], static_cast<std::byte>(2 - comm.rank()));
    comm.barrier();
  });
}

TEST(BoardTest, NothingIsReadOnceTheGroupHasFailed) {
  TRIMTAB_NEEDS_RANKS(2);
  run_group(2, [](Communicator& comm) {
    comm.board()->post(nullptr);
    comm.board()->wait_posted(1, "test");
    if (comm.rank() == 0) comm.abort("no more");
    if (comm.rank() == 1) {
      EXPECT_THROW(comm.barrier(), CommError);
      EXPECT_THROW(Board::Reading(*comm.board()), CommError);
    }
  });
}

}  // namespace
}  // namespace trimtab
