// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_network.h"

#include <chrono>
#include <cstring>

#include "base/cat.h"
#include "comm/mpi/mpi_calls.h"
#include "comm/mpi/mpi_peers.h"

namespace trimtab {
namespace {

using std::chrono::steady_clock;

constexpr int kFailureTag = 0;  // groups begin at 1

}  // namespace

MpiNetwork::MpiNetwork(MPI_Comm comm, FailureDomain& domain, int rank, bool progress_thread)
    : comm_(comm), domain_(domain), rank_(rank) {
  const std::lock_guard lock(mpi::calls());
  int* tag = nullptr;
  int found = 0;
  mpi::check(MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&tag), &found),
             "MPI_Comm_get_attr");
  if (found != 0) largest_tag_ = *tag;
  post_failure_receive();
  if (!progress_thread) return;
  progress_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      poll();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
}

MpiNetwork::~MpiNetwork() {
  if (progress_.joinable()) {
    progress_.request_stop();
    progress_.join();
  }
  const std::lock_guard lock(mpi::calls());
  int finalized = 0;
  if (MPI_Finalized(&finalized); finalized != 0) return;
  for (const auto end = steady_clock::now() + std::chrono::seconds(1);
       !all_away() && steady_clock::now() < end;) {
    std::this_thread::yield();
  }
  MPI_Cancel(&failure_request_);
  MPI_Wait(&failure_request_, MPI_STATUS_IGNORE);
  // What has not left by now may still be read by MPI.
  if (!small_messages_.empty()) new std::list<SmallMessage>(std::move(small_messages_));
  // The MPI communicator is not freed: farewells of peers may still come, and MPI would deliver
  // them to the next communicator of that number.
}

void MpiNetwork::post_failure_receive() {
  const int code = MPI_Irecv(&failure_, sizeof failure_, MPI_BYTE, MPI_ANY_SOURCE, kFailureTag,
                             comm_, &failure_request_);
  if (code != MPI_SUCCESS) fail(rank_, "MPI_Irecv", code);
}

std::unique_ptr<OutsidePeers> MpiNetwork::peers(std::vector<int> members, int rank,
                                                std::vector<bool> here, int64_t number) {
  if (number > (largest_tag_ - 2) / 2) {
    throw Error(cat("group ", number, " of this process: MPI has tags for ", (largest_tag_ - 2) / 2,
                    " only"));
  }
  return std::make_unique<MpiPeers>(*this, std::move(members), rank, here,
                                    static_cast<int>(2 * number + 1));
}

void MpiNetwork::poll() noexcept {
  // To the end: what the progress thread has received, the others must find in the domain.
  const std::lock_guard polling(polling_);
  Failure failure;
  {
    const std::lock_guard lock(mpi::calls());
    if (domain_.failed()) return;
    drop_sent_messages();
    int arrived = 0;
    if (const int code = MPI_Test(&failure_request_, &arrived, MPI_STATUS_IGNORE);
        code != MPI_SUCCESS) {
      return fail(rank_, "MPI_Test", code);
    }
    if (arrived == 0) return;
    failure = failure_;
    post_failure_receive();
  }
  domain_.fail(failure.culprit, failure.blamed, failure.reason, false);
}

void MpiNetwork::tell_failed(int culprit, int blamed, const char* reason) noexcept {
  Failure failure;
  failure.culprit = culprit;
  failure.blamed = blamed;
  std::strncpy(failure.reason, reason, sizeof failure.reason - 1);
  for (int r = 0; r < domain_.ranks(); ++r) {
    if (domain_.host(r) != domain_.host(rank_))
      send_away(std::as_bytes(std::span(&failure, 1)), r, kFailureTag);
  }
  // This process may end soon.
  for (const auto end = steady_clock::now() + std::chrono::milliseconds(200);
       !all_away() && steady_clock::now() < end;) {
    std::this_thread::yield();
  }
}

void MpiNetwork::fail(int peer, const char* call, int code) noexcept {
  domain_.fail(rank_, peer, (std::string(call) + ": " + mpi::error_text(code)).c_str());
}

void MpiNetwork::send_away(std::span<const std::byte> message, int member, int tag) noexcept {
  const std::lock_guard lock(mpi::calls());
  SmallMessage& small = small_messages_.emplace_back(
      SmallMessage{{message.begin(), message.end()}, MPI_REQUEST_NULL});
  // A rank that can't be told is one that has gone.
  MPI_Isend(small.message.data(), static_cast<int>(message.size()), MPI_BYTE, member, tag, comm_,
            &small.request);
}

void MpiNetwork::drop_sent_messages() {
  std::erase_if(small_messages_, [](SmallMessage& small) {
    int sent = 0;
    return MPI_Test(&small.request, &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS || sent != 0;
  });
}

bool MpiNetwork::all_away() noexcept {
  const std::lock_guard lock(mpi::calls());
  drop_sent_messages();
  return small_messages_.empty();
}

}  // namespace trimtab
