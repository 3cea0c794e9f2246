// SPDX-License-Identifier: Apache-2.0
// What MPI does with memory after a failure. Two processes of this host play two hosts, over TCP,
// so that a long message moves only while both of them are in MPI.
#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/group_communicator.h"
#include "comm/mpi/mpi_network.h"
#include "comm/process_group.h"
#include "comm/testing.h"
#include "trimtab/error.h"
#include "trimtab/mpi_communicator.h"

namespace trimtab {
namespace {

using namespace std::chrono_literals;

// Before MPI begins. Other implementations of MPI do not read these.
[[maybe_unused]] const bool kOverTcp = [] {
  ::setenv("OMPI_MCA_pml", "ob1", 1);
  ::setenv("OMPI_MCA_btl", "tcp,self", 1);
  ::setenv("OMPI_MCA_btl_tcp_if_include", "lo", 1);
  return true;
}();

constexpr size_t kBytes = size_t{64} << 20;

// The group of two processes that are on hosts of their own as far as they know.
class TwoHosts {
 public:
  explicit TwoHosts(std::chrono::milliseconds timeout) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : MPI_UNDEFINED, rank, &ranks_);
    if (rank >= 2) return;
    const ProcessExchange exchange = [this](std::span<const std::byte> mine) {
      std::vector<std::byte> all(2 * mine.size());
      const auto bytes = static_cast<int>(mine.size());
      MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, ranks_);
      return all;
    };
    const auto [made, state] =
        begin_process_group(rank, {.timeout = timeout, .hosts = {0, 1}}, exchange);
    domain = made;
    int32_t process = ::getpid();
    MPI_Bcast(&process, 1, MPI_INT32_T, 0, ranks_);
    signal_ = testing::TempDir() + "mpi_peers_test_" + std::to_string(process);
    MPI_Comm messages = MPI_COMM_NULL;
    MPI_Comm_dup(ranks_, &messages);
    MPI_Comm_set_errhandler(messages, MPI_ERRORS_RETURN);
    domain->set_outside(std::make_unique<MpiNetwork>(messages, *domain, rank, false));
    comm = std::make_unique<GroupCommunicator>(domain, std::vector<int>{0, 1}, rank, state);
    comm->barrier();  // so that the two are connected
  }

  // Rank 0 tells rank 1 to go on, without MPI.
  void let_go_on() const { std::ofstream(signal_).put('x'); }
  void wait_for_signal() const {
    for (int i = 0; i < 20000 && !std::filesystem::exists(signal_); ++i)
      std::this_thread::sleep_for(1ms);
    std::filesystem::remove(signal_);
  }

  std::shared_ptr<FailureDomain> domain;
  std::unique_ptr<Communicator> comm;  // null: this process is a third one

 private:
  MPI_Comm ranks_ = MPI_COMM_NULL;
  std::string signal_;
};

// Lets MPI move messages.
void progress(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, 4711, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    std::this_thread::sleep_for(20us);
  }
}

class MpiMemory : public testing::Test {
 protected:
  void SetUp() override {
    TRIMTAB_NEEDS_RANKS(2);
    if (!ranks_are_processes()) GTEST_SKIP() << "for ranks that are processes";
  }
  void TearDown() override {
    if (ranks_are_processes()) MPI_Barrier(MPI_COMM_WORLD);
  }

  // The message has begun to arrive, and more of it has to come.
  static void expect_begun(Pending& pending, const int64_t& bytes) {
    for (int i = 0; i < 20000 && bytes == 0; ++i) {
      EXPECT_FALSE(pending.done());
      std::this_thread::sleep_for(1ms);
    }
    for (int i = 0; i < 100; ++i) {
      EXPECT_FALSE(pending.done()) << "the message came at once, so nothing is tested";
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(bytes, static_cast<int64_t>(kBytes)) << "the message has not begun to arrive";
  }

  // Rank 1 begins to send and stops for a while. Rank 0 begins to receive into the memory of
  // make_memory(), gives up, and uses the memory for something else, which must stay as it is.
  template <class MakeMemory>
  static void expect_left_alone(const MakeMemory& make_memory) {
    TwoHosts hosts(30s);
    if (hosts.comm == nullptr) return;
    const std::vector<std::byte> sent(kBytes, std::byte{1});
    std::vector<int64_t> bytes(2);
    if (hosts.comm->rank() == 1) {
      {
        std::vector<std::byte> received(kBytes);
        Pending pending = hosts.comm->all_gather_v(sent, received, bytes);
        hosts.wait_for_signal();  // neither sends nor receives
        progress(2s);
        EXPECT_THROW(pending.wait(), CommError);
      }
      hosts.comm = nullptr;
      return;
    }
    auto [memory, again] = make_memory(*hosts.comm);
    Pending pending = hosts.comm->all_gather_v({}, memory, bytes);
    expect_begun(pending, bytes[1]);
    hosts.comm->abort("rank 0 gives up");
    const std::span<std::byte> reused = again(*hosts.comm);
    std::ranges::fill(reused, std::byte{7});
    hosts.comm = nullptr;
    hosts.let_go_on();
    progress(2500ms);
    EXPECT_EQ(std::ranges::count(reused, std::byte{7}), std::ssize(reused));
  }
};

TEST_F(MpiMemory, AReceiveThatWasGivenUpDoesNotLandInTheCallersMemory) {
  std::vector<std::byte> memory(kBytes);
  expect_left_alone([&](Communicator&) {
    return std::pair(std::span(memory), [&](Communicator&) { return std::span(memory); });
  });
}

TEST_F(MpiMemory, AReceiveThatWasGivenUpDoesNotLandInMemoryThatIsAllocatedAgain) {
  Buffer memory, next;
  expect_left_alone([&](Communicator& comm) {
    memory = comm.allocate(kBytes);
    return std::pair(std::span(memory.data(), kBytes), [&](Communicator& same) {
      memory = {};
      next = same.allocate(kBytes);
      return std::span(next.data(), kBytes);
    });
  });
}

// A message that is too long for its destination, and a sum, go to scratch memory first.
TEST_F(MpiMemory, ScratchMemoryOutlivesItsReceives) {
  TwoHosts hosts(30s);
  if (hosts.comm == nullptr) return;
  const std::vector<float> send(kBytes / 2 / sizeof(float), 1.0F);
  const std::vector<int64_t> counts(2, std::ssize(send) / 2);
  std::vector<float> sum(send.size() / 2);
  Pending pending = hosts.comm->reduce_scatter_v(send, counts, sum);
  if (hosts.comm->rank() == 1) {
    hosts.wait_for_signal();
    progress(2s);
    EXPECT_THROW(pending.wait(), CommError);
    hosts.comm = nullptr;
    return;
  }
  for (int i = 0; i < 500 && !pending.done(); ++i) std::this_thread::sleep_for(1ms);
  hosts.comm->abort("rank 0 gives up");
  hosts.comm = nullptr;
  hosts.let_go_on();
  // What was scratch memory is used by others now.
  std::vector<std::vector<std::byte>> others;
  for (int i = 0; i < 8; ++i) others.emplace_back(kBytes / 8, std::byte{7});
  progress(2500ms);
  for (const auto& other : others)
    EXPECT_EQ(std::ranges::count(other, std::byte{7}), std::ssize(other));
}

// Without a failure everything arrives, wherever the destination is.
TEST_F(MpiMemory, MessagesArriveInMemoryOfEveryKind) {
  TwoHosts hosts(30s);
  if (hosts.comm == nullptr) return;
  const auto own = static_cast<std::byte>(hosts.comm->rank() + 1);
  std::vector<int64_t> bytes(2);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, size_t{3} << 20}) {
    const std::vector<std::byte> send(size, own);
    std::vector<std::byte> heap(2 * size);
    const Buffer shared = hosts.comm->allocate(2 * size + 1);
    for (const std::span<std::byte> to : {std::span(heap), std::span(shared.data(), 2 * size)}) {
      Pending pending = hosts.comm->all_gather_v(send, to, bytes);
      pending.wait();
      pending.wait_released();
      EXPECT_EQ(bytes, (std::vector<int64_t>(2, static_cast<int64_t>(size))));
      EXPECT_EQ(std::ranges::count(to.first(size), std::byte{1}), std::ssize(send));
      EXPECT_EQ(std::ranges::count(to.last(size), std::byte{2}), std::ssize(send));
    }
  }
  hosts.comm->barrier();
  hosts.comm = nullptr;
}

}  // namespace
}  // namespace trimtab
