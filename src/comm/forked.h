// SPDX-License-Identifier: Apache-2.0
// For tests: ranks that are processes, made by fork() and not by MPI.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/process_group.h"
#include "comm/stream_outside.h"
#include "comm/testing_streams.h"
#include "trimtab/error.h"
#include "trimtab/process_communicator.h"

namespace trimtab {

// A page that all processes see, in which they meet.
struct Meeting {
  static constexpr size_t kBytes = 256;
  std::atomic<int> arrived[64];  // by round
  std::byte words[64][4][kBytes];
};

class Forked {
 public:
  // hosts: of each rank, none: all are on one. Ranks of other hosts share no memory as far as they
  // know, and have TCP connections.
  explicit Forked(int ranks, std::chrono::milliseconds timeout = std::chrono::seconds(60),
                  std::vector<int32_t> hosts = {})
      : ranks_(ranks), timeout_(timeout), hosts_(std::move(hosts)) {
    void* p =
        ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    meeting_ = static_cast<Meeting*>(p);
  }
  ~Forked() { ::munmap(meeting_, sizeof(Meeting)); }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;

  // Runs body on each rank; returns what waitpid says of each. A body that returns "" has
  // succeeded.
  std::vector<int> run(const std::function<std::string(Communicator&)>& body) {
    std::fflush(nullptr);  // a child would print it once more
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks_; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(live(rank, body));
      children.push_back(child);
    }
    std::vector<int> statuses;
    for (const pid_t child : children) ::waitpid(child, &statuses.emplace_back(), 0);
    return statuses;
  }

 private:
  int live(int rank, const std::function<std::string(Communicator&)>& body) {
    std::string problem;
    try {
      problem = body(*end_of_group(rank));
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (!problem.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, problem.c_str());
    return problem.empty() ? 0 : 1;
  }

  std::unique_ptr<Communicator> end_of_group(int rank) {
    const ProcessExchange exchange = [this, rank](std::span<const std::byte> mine) {
      return meet(rank, mine);
    };
    if (hosts_.empty()) return make_process_communicator(rank, exchange, {.timeout = timeout_});
    auto [domain, state] =
        begin_process_group(rank, {.timeout = timeout_, .hosts = hosts_}, exchange);
    StreamOutside::connect(std::make_shared<TcpStreams>(rank, exchange), *domain, rank);
    return make_end(std::move(domain), ranks_, rank, state);
  }

  std::vector<std::byte> meet(int rank, std::span<const std::byte> mine) {
    const size_t round = round_++;
    std::memcpy(meeting_->words[round][rank], mine.data(), mine.size());
    ++meeting_->arrived[round];
    while (meeting_->arrived[round] < ranks_) std::this_thread::yield();
    std::vector<std::byte> all;
    for (int r = 0; r < ranks_; ++r) {
      all.insert(all.end(), meeting_->words[round][r], meeting_->words[round][r] + mine.size());
    }
    return all;
  }

  const int ranks_;
  const std::chrono::milliseconds timeout_;
  const std::vector<int32_t> hosts_;
  Meeting* meeting_;
  size_t round_ = 0;
};

// The error of a barrier that the others have to wait in for the dead rank.
inline std::string told_of(Communicator& comm, int dead, const char* part) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    comm.barrier();
  } catch (const CommError& error) {
    const std::string text = error.what();
    if (error.peer() != dead || text.find(part) == std::string::npos) return text;
    return std::chrono::steady_clock::now() - begin < std::chrono::seconds(20) ? ""
                                                                               : "late: " + text;
  }
  return "no CommError";
}

}  // namespace trimtab
