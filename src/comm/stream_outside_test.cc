// SPDX-License-Identifier: Apache-2.0
// Groups over hosts that streams of the caller's connect. What a group does over hosts whatever
// connects them: process_failure_test.cc and collectives_test.cc, under tests/hosts.
#include "comm/stream_outside.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "comm/forked.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace std::chrono_literals;

// Each rank's bytes to each other one, of lengths on both sides of what a packet holds, several
// collectives in flight, in a group and in one that comes of it.
std::string exchange_blocks(Communicator& comm, int64_t longest) {
  const int ranks = comm.size(), rank = comm.rank();
  const auto length = [&](int from, int to, int64_t round) {
    return (from * 7 + to * 3 + round) % 4 == 0 ? int64_t{0} : longest - from - to - round;
  };
  const auto value = [](int from, int to, int64_t round) {
    return static_cast<std::byte>(1 + from * 50 + to * 10 + round);
  };
  struct Round {
    std::vector<std::byte> send, received;
    std::vector<int64_t> send_bytes, bytes;
    Pending pending;
  };
  std::array<Round, 4> rounds;
  for (int64_t i = 0; i < std::ssize(rounds); ++i) {
    Round& round = rounds[i];
    for (int to = 0; to < ranks; ++to) {
      round.send_bytes.push_back(length(rank, to, i));
      round.send.insert(round.send.end(), round.send_bytes.back(), value(rank, to, i));
    }
    round.bytes.resize(ranks);
    round.received.resize(ranks * longest);
    round.pending = comm.all_to_all_v(round.send, round.send_bytes, round.received, round.bytes);
  }
  for (int64_t i = 0; i < std::ssize(rounds); ++i) {
    Round& round = rounds[i];
    round.pending.wait();
    const std::byte* at = round.received.data();
    for (int from = 0; from < ranks; ++from) {
      if (round.bytes[from] != length(from, rank, i)) return cat("length from rank ", from);
      for (int64_t b = 0; b < round.bytes[from]; ++b)
        if (*at++ != value(from, rank, i)) return cat("bytes from rank ", from, ", round ", i);
    }
    round.pending.wait_released();
  }
  return "";
}

TEST(HostsOverStreams, GroupsExchangeBlocksOfAllLengths) {
  for (const int status : Forked(4, 60s, {0, 0, 1, 1}).run([](Communicator& comm) -> std::string {
         for (const int64_t longest : {20, 990, 1100, 3'000'000}) {
           if (std::string problem = exchange_blocks(comm, longest); !problem.empty())
             return cat(longest, ": ", problem);
         }
         for (int i = 0; i < 20; ++i) {
           const auto part = comm.split(comm.rank() % 2, 0);  // one rank of each host
           if (std::string problem = exchange_blocks(*part, 2000); !problem.empty())
             return cat("part: ", problem);
         }
         return comm.board() == nullptr ? "" : "there is a board over hosts";
       })) {
    EXPECT_EQ(status, 0);
  }
}

TEST(HostsOverStreams, SumsAreThoseOfOneHost) {
  for (const int status : Forked(3, 60s, {0, 1, 1}).run([](Communicator& comm) -> std::string {
         const std::vector<float> send{1.0e8F, 3.0F, static_cast<float>(comm.rank())};
         const std::vector<int64_t> counts{1, 1, 1};
         float sum = -1;
         comm.reduce_scatter_v(send, counts, std::span(&sum, 1)).wait_released();
         const std::vector<float> expected{3.0e8F, 9.0F, 3.0F};
         return sum == expected[comm.rank()] ? "" : cat("sum ", sum);
       })) {
    EXPECT_EQ(status, 0);
  }
}

TEST(HostsOverStreams, AKilledRankIsNoticedLongBeforeTheTimeout) {
  const auto statuses = Forked(3, 60s, {0, 1, 1}).run([](Communicator& comm) -> std::string {
    if (comm.rank() == 2) ::raise(SIGKILL);
    return told_of(comm, 2, "ended");  // its process, or the connection to it
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(statuses[1], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[2]));
}

// A rank whose peers have more to do leaves without an error on either side.
TEST(HostsOverStreams, RanksMayLeaveOneAfterTheOther) {
  for (const int status : Forked(3, 60s, {0, 1, 2}).run([](Communicator& comm) -> std::string {
         comm.barrier();
         const auto part = comm.split(comm.rank() == 0 ? -1 : 0, 0);
         if (comm.rank() == 0) return "";
         for (int i = 0; i < 5; ++i) {
           std::this_thread::sleep_for(i == 0 ? 1500ms : 1ms);
           part->barrier();
         }
         return "";
       })) {
    EXPECT_EQ(status, 0);
  }
}

// A peer that sends what is no message: an error that says so, not a wait.
TEST(HostsOverStreams, BytesOfSomethingElseAreRefused) {
  class Garbage final : public HostStreams {
   public:
    void send(int, std::span<const std::byte>) override {}
    void receive(int, std::span<std::byte> bytes) override {
      std::memset(bytes.data(), 7, bytes.size());
    }
  };
  FailureDomain domain(2, {.hosts = {0, 1}});
  StreamOutside::connect(std::make_shared<Garbage>(), domain, 0);
  for (int i = 0; i < 2000 && !domain.failed(); ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(domain.failed());
  EXPECT_EQ(domain.blamed(), 1);
  EXPECT_NE(std::string(domain.reason()).find("no message of this version"), std::string::npos)
      << domain.reason();
}

}  // namespace
}  // namespace trimtab
