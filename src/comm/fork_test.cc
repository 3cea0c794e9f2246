// SPDX-License-Identifier: Apache-2.0
// What happens when one of several processes that share memory is killed or stopped.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "comm/forked.h"
#include "comm/rank_bytes.h"
#include "trimtab/error.h"
#include "trimtab/process_communicator.h"
#include "trimtab/require_equal.h"

namespace trimtab {
namespace {

TEST(ForkedRanks, ReduceInOrder) {
  for (const int status : Forked(3).run([](Communicator& comm) -> std::string {
         const std::vector<float> send{1.0e8F, 3.0F, static_cast<float>(comm.rank())};
         const std::vector<int64_t> counts{1, 1, 1};
         float sum = -1;
         comm.reduce_scatter_v(send, counts, std::span(&sum, 1)).wait_released();
         const std::vector<float> expected{3.0e8F, 9.0F, 3.0F};
         return sum == expected[comm.rank()] ? "" : "sum " + std::to_string(sum);
       })) {
    EXPECT_EQ(status, 0);
  }
}

TEST(ForkedRanks, AKilledRankIsNoticedLongBeforeTheTimeout) {
  const auto statuses = Forked(3).run([](Communicator& comm) -> std::string {
    if (comm.rank() == 1) ::raise(SIGKILL);
    return told_of(comm, 1, "its process has ended");
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  EXPECT_EQ(statuses[2], 0);
}

// abort() waits for readers, but not for dead ones.
TEST(ForkedRanks, AReaderThatIsKilledHoldsNobodyUp) {
  const auto statuses = Forked(2).run([](Communicator& comm) -> std::string {
    const Board::Reading* reading = nullptr;
    if (comm.rank() == 1) reading = new Board::Reading(*comm.board());
    comm.barrier();
    if (reading != nullptr) ::raise(SIGKILL);
    return told_of(comm, 1, "its process has ended");
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
}

// A rank of two that stops itself (SIGSTOP), until its peer lets it go on.
class Stoppable {
 public:
  Stoppable() {
    void* p = ::mmap(nullptr, sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_ = new (p) std::atomic<pid_t>(0);
  }
  ~Stoppable() { ::munmap(pid_, sizeof *pid_); }
  Stoppable(const Stoppable&) = delete;
  Stoppable& operator=(const Stoppable&) = delete;

  void stop() {
    *pid_ = ::getpid();
    ::raise(SIGSTOP);
  }
  void wait_until_stopped() const {
    while (*pid_ == 0) std::this_thread::yield();
    for (std::string state; state != "T";) {
      std::ifstream file("/proc/" + std::to_string(*pid_) + "/stat");
      std::string skipped;
      file >> skipped >> skipped >> state;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void let_go_on() const { ::kill(*pid_, SIGCONT); }

 private:
  std::atomic<pid_t>* pid_;
};

// Every wait of a rank for a peer. `before` is done by both ranks before one of them stops; `wait`
// needs the other one.
struct PeerWait {
  const char* name;
  std::function<void(Communicator&)> before, wait;
};

std::vector<PeerWait> peer_waits() {
  static std::vector<int64_t> bytes(2);
  static std::array<std::byte, 64> received;
  static std::array<Pending, Communicator::kMaxInFlight> pending;
  const auto gather = [](Communicator& comm) {
    static const std::array<std::byte, 8> sent{};
    return comm.all_gather_v(sent, received, bytes);
  };
  const auto nothing = [](Communicator&) {};
  return {
      {"barrier", nothing, [](Communicator& comm) { comm.barrier(); }},
      {"collective", nothing, [=](Communicator& comm) { gather(comm).wait(); }},
      {"release", [=](Communicator& comm) { pending[0] = gather(comm); },
       [](Communicator&) {
         pending[0].wait();
         pending[0].wait_released();
       }},
      {"place in the ring",
       [=](Communicator& comm) {
         for (Pending& one : pending) one = gather(comm);
       },
       [=](Communicator& comm) {
         pending.back().wait();
         gather(comm);
       }},
      {"board", nothing,
       [](Communicator& comm) {
         Board& board = *comm.board();
         board.wait_posted(board.post(nullptr), "board");
       }},
      {"board post", nothing,
       [](Communicator& comm) {
         for (int i = 0; i < 20; ++i) comm.board()->post(nullptr);
       }},
      {"split", nothing, [](Communicator& comm) { comm.duplicate(); }},
      {"bytes of ranks", nothing, [](Communicator& comm) { bytes_of_ranks(comm, {}); }},
      {"bytes to rank 0", nothing, [](Communicator& comm) { bytes_to_rank_0(comm, {}); }},
      {"require equal", nothing, [](Communicator& comm) { require_equal(comm, {}); }},
  };
}

std::string error_in_time(const std::function<void()>& wait) {
  const auto begin = std::chrono::steady_clock::now();
  std::string text = "no CommError";
  try {
    wait();
  } catch (const CommError&) {
    text = "";
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  return took < std::chrono::seconds(10) ? text : "too late";
}

// A peer that is stopped, also in the middle of reading, is a CommError soon after the timeout.
// When it goes on, it gets a CommError too, and what it was reading is still there.
TEST(ForkedRanks, AStoppedPeerHoldsNoWaitUp) {
  for (const bool reads : {false, true}) {
    for (const PeerWait& peer_wait : peer_waits()) {
      SCOPED_TRACE(std::string(peer_wait.name) + (reads ? ", reading" : ""));
      Stoppable stoppable;
      Forked ranks(2, std::chrono::milliseconds(300));
      const auto statuses = ranks.run([&](Communicator& comm) -> std::string {
        const Buffer memory = comm.allocate(1 << 16);
        std::memset(memory.data(), 5, memory.bytes());
        comm.board()->post(memory.data());
        comm.board()->wait_posted(1, "test");
        peer_wait.before(comm);
        if (comm.rank() == 0) {
          stoppable.wait_until_stopped();
          std::string problem = error_in_time([&] { peer_wait.wait(comm); });
          if (problem.empty())
            problem = error_in_time([&] { comm.board()->wait_posted(1000, "test"); });
          stoppable.let_go_on();
          return problem;
        }
        if (!reads) {
          stoppable.stop();
        } else {
          const Board::Reading reading(*comm.board());
          const void* item = comm.board()->item(0, 1);
          stoppable.stop();
          // Rank 0 has freed it by now, or is about to.
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          if (static_cast<const std::byte*>(item)[1 << 15] != std::byte{5}) return "overwritten";
        }
        return error_in_time([&] { comm.board()->wait_posted(1000, "test"); });
      });
      EXPECT_EQ(statuses[0], 0);
      EXPECT_EQ(statuses[1], 0);
    }
  }
}

TEST(ForkedRanks, AbortDoesNotWaitForAStoppedReader) {
  Stoppable stoppable;
  Forked ranks(2, std::chrono::milliseconds(300));
  const auto statuses = ranks.run([&](Communicator& comm) -> std::string {
    if (comm.rank() == 1) {
      const Board::Reading reading(*comm.board());
      stoppable.stop();
      return "";
    }
    stoppable.wait_until_stopped();
    const auto begin = std::chrono::steady_clock::now();
    comm.abort("enough");
    const auto took = std::chrono::steady_clock::now() - begin;
    stoppable.let_go_on();
    return took < std::chrono::seconds(10) ? "" : "too late";
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(statuses[1], 0);
}

// /dev/shm that is full is an error, not a signal.
TEST(ForkedRanks, TooMuchMemoryIsAnError) {
  for (const int status : Forked(1).run([](Communicator& comm) -> std::string {
         try {
           const Buffer all = comm.allocate(size_t{1} << 46);
         } catch (const Error&) {
           const Buffer some = comm.allocate(1 << 20);
           return "";
         }
         return "no Error";
       })) {
    EXPECT_EQ(status, 0);
  }
}

// What the start of a group of processes says where it can't be.
std::string error_of_start(int rank, const ProcessExchange& exchange,
                           const GroupOptions& options = {}) {
  try {
    make_process_communicator(rank, exchange, options);
  } catch (const InvalidArgument& error) {
    return cat("InvalidArgument: ", error.what());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ProcessStart, RefusesWhatCanNotBe) {
  const auto alone = [](std::span<const std::byte> mine) {
    return std::vector<std::byte>(mine.begin(), mine.end());
  };
  EXPECT_EQ(error_of_start(0, alone), "");
  EXPECT_EQ(error_of_start(1, alone), "InvalidArgument: rank 1 of a group of 1 processes");
  EXPECT_EQ(error_of_start(0, alone, {.timeout = std::chrono::milliseconds(0)}),
            "InvalidArgument: a timeout must be above 0 ms, got 0");
  EXPECT_EQ(error_of_start(0, alone, {.hosts = {0}}),
            "InvalidArgument: processes find out their hosts; GroupOptions::hosts is for threads");
}

TEST(ProcessStart, RefusesAnExchangeThatLosesBytes) {
  int calls = 0;
  const auto loses = [&calls](std::span<const std::byte> mine) {
    std::vector<std::byte> all(mine.begin(), mine.end());
    if (++calls == 2) all.pop_back();
    return all;
  };
  EXPECT_NE(error_of_start(0, loses).find("not as many of each rank"), std::string::npos);
  EXPECT_NE(error_of_start(0, [](auto) { return std::vector<std::byte>(); })
                .find("gave 0 bytes, not as many of each rank"),
            std::string::npos);
}

TEST(ProcessStart, RanksOfTwoHostsAreToldThatTheyNeedStreams) {
  const auto another_host = [](std::span<const std::byte> mine) {
    std::vector<std::byte> all(mine.begin(), mine.end());
    all.insert(all.end(), mine.begin(), mine.end());
    all[mine.size()] ^= std::byte{1};
    return all;
  };
  const std::string error = error_of_start(0, another_host);
  EXPECT_NE(error.find("rank 1 does not see the shared memory (/dev/shm) of rank 0"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("need streams"), std::string::npos) << error;
}

// Freed memory is used again, joined with its neighbours, and zero.
TEST(ForkedRanks, MemoryComesBack) {
  for (const int status : Forked(1).run([](Communicator& comm) -> std::string {
         Buffer a = comm.allocate(5000), b = comm.allocate(5000), c = comm.allocate(5000);
         std::byte* const first = a.data();
         a.data()[1] = std::byte{7};
         b = {};
         a = {};
         const Buffer again = comm.allocate(16000);
         if (again.data() != first) return "a and b were not joined";
         return again.data()[1] == std::byte{0} ? "" : "not zero";
       })) {
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace trimtab
