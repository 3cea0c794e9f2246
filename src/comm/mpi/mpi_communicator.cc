// SPDX-License-Identifier: Apache-2.0
// How a group of processes begins that MPI has started.
#include "trimtab/mpi_communicator.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "comm/mpi/mpi_calls.h"
#include "comm/mpi/mpi_network.h"
#include "comm/process_group.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// The MPI communicator that a group begins with; its collectives are the only ones of MPI that are
// used.
class Start {
 public:
  Start(MPI_Comm ranks, std::chrono::milliseconds timeout)
      : timeout_(timeout),
        end_(std::chrono::steady_clock::now() +
             std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(1000))) {
    const std::lock_guard lock(mpi::calls());
    mpi::check(MPI_Comm_rank(ranks, &rank_), "MPI_Comm_rank");
    mpi::check(MPI_Comm_size(ranks, &size_), "MPI_Comm_size");
    MPI_Request request = MPI_REQUEST_NULL;
    mpi::check(MPI_Comm_idup(ranks, &comm_, &request), "MPI_Comm_idup");
    if (!wait(request)) throw_late();
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm comm() const { return comm_; }

  // Every rank gives as many bytes.
  std::vector<std::byte> exchange(std::span<const std::byte> mine) {
    const std::lock_guard lock(mpi::calls());
    std::vector<std::byte> sent(mine.begin(), mine.end()), all(cells(mine.size(), size_));
    const auto bytes = static_cast<int>(mine.size());
    MPI_Request request = MPI_REQUEST_NULL;
    mpi::check(
        MPI_Iallgather(sent.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm_, &request),
        "MPI_Iallgather");
    if (wait(request)) return all;
    // MPI may still write here.
    new std::vector<std::byte>(std::move(sent));
    new std::vector<std::byte>(std::move(all));
    throw_late();
  }

 private:
  bool wait(MPI_Request& request) const {
    for (int done = 0;;) {
      mpi::check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) return true;
      if (std::chrono::steady_clock::now() >= end_) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  [[noreturn]] void throw_late() const {
    throw CommError(rank_, -1, "start of a group",
                    cat("not all ranks came within ", timeout_.count(), " ms"));
  }

  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point end_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm ranks, const MpiOptions& options) {
  if (!options.group.hosts.empty())
    throw InvalidArgument("MPI ranks find out their hosts; GroupOptions::hosts is for threads");
  for (const auto timeout : {options.group.timeout, options.start_timeout}) {
    if (timeout.count() <= 0)
      throw InvalidArgument(cat("a timeout must be above 0 ms, got ", timeout.count()));
  }
  Start start(ranks, options.start_timeout);
  const ProcessExchange exchange = [&start](std::span<const std::byte> mine) {
    return start.exchange(mine);
  };
  GroupOptions group = options.group;
  group.hosts = find_hosts(exchange);
  const auto [domain, state] = begin_process_group(start.rank(), group, exchange);

  if (std::ranges::all_of(group.hosts, [](int32_t host) { return host == 0; })) {
    MPI_Comm comm = start.comm();
    const std::lock_guard lock(mpi::calls());
    mpi::check(MPI_Comm_free(&comm), "MPI_Comm_free");
  } else {
    domain->set_outside(
        std::make_unique<MpiNetwork>(start.comm(), *domain, start.rank(), options.progress_thread));
  }
  return make_end(domain, start.size(), start.rank(), state);
}

}  // namespace trimtab
