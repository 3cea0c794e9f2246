// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

class Boards : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Boards, testing::Values(1, 2, 3, 4, 7), testing::PrintToStringParamName());

// Memory behind item n is written again as soon as the rule allows it: a race here is one that TSan sees.
TEST_P(Boards, ItemsAreReadInPlaceAndMemoryMayBeReusedAfterTheNextPost) {
  const int ranks = GetParam();
  run_ranks(ranks, [&](Communicator& comm) {
    Board& board = *comm.board();
    std::vector<int> memory(2);
    for (int round = 1; round <= 100; ++round) {
      int& mine = memory[static_cast<size_t>(round % 2)];
      mine = comm.rank() * 1000 + round;
      const uint64_t n = board.post(&mine);
      EXPECT_EQ(n, static_cast<uint64_t>(round));
      board.wait_posted(n, "test");
      EXPECT_TRUE(board.posted(n));
      EXPECT_FALSE(board.posted(n + 1));
      const Board::Reading reading(board);
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(*static_cast<const int*>(board.item(r, n)), r * 1000 + round);
    }
    comm.barrier();
  });
}

TEST(BoardTest, ARankMayRunAheadAndThenWaitsForTheSlowest) {
  std::atomic<int> ahead{0};
  run_ranks(2, [&](Communicator& comm) {
    Board& board = *comm.board();
    const std::vector<int> items(20, comm.rank());
    if (comm.rank() == 1) {
      while (ahead < 1 + Board::kMaxAhead) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(ahead, 1 + Board::kMaxAhead);
    }
    for (const int& item : items) {
      const uint64_t n = board.post(&item);
      if (comm.rank() == 0) ++ahead;
      if (comm.rank() == 1) {
        board.wait_posted(n, "test");
        const Board::Reading reading(board);
        EXPECT_EQ(*static_cast<const int*>(board.item(0, n)), 0);
      }
    }
    comm.barrier();
  });
}

TEST(BoardTest, GroupsHaveBoardsOfTheirOwn) {
  run_ranks(2, [](Communicator& comm) {
    const auto other = comm.duplicate();
    const int a = 1, b = 2;
    const uint64_t first = comm.board()->post(&a);
    EXPECT_EQ(first, 1U);
    EXPECT_EQ(other->board()->post(&b), 1U);
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

TEST(BoardTest, NothingIsReadOnceTheGroupHasFailed) {
  run_ranks(2, [](Communicator& comm) {
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
