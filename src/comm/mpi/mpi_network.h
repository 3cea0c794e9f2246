// SPDX-License-Identifier: Apache-2.0
// Messages between hosts. One MPI communicator carries those of all groups of a domain; groups are
// told apart by tags, so that a new group costs no call of MPI that could block.
#pragma once

#include <mpi.h>

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "comm/failure_domain.h"
#include "comm/outside.h"

namespace trimtab {

class MpiNetwork final : public Outside {
 public:
  // comm: for this alone from here on; its ranks are the domain's. The domain owns this.
  MpiNetwork(MPI_Comm comm, FailureDomain& domain, int rank, bool progress_thread);
  ~MpiNetwork() override;
  MpiNetwork(const MpiNetwork&) = delete;
  MpiNetwork& operator=(const MpiNetwork&) = delete;

  std::unique_ptr<OutsidePeers> peers(std::vector<int> members, int rank, std::vector<bool> here,
                                      int64_t number) override;
  void poll() noexcept override;
  void tell_failed(int culprit, int blamed, const char* reason) noexcept override;

  MPI_Comm comm() const { return comm_; }
  FailureDomain& domain() const { return domain_; }
  // An error of MPI, met on the way to or from a rank of the domain.
  void fail(int peer, const char* call, int code) noexcept;
  // Sends a small message that nobody waits for.
  void send_away(std::span<const std::byte> message, int member, int tag) noexcept;
  // Have those messages left?
  bool all_away() noexcept;

 private:
  struct Failure {
    int32_t culprit = 0;
    int32_t blamed = 0;
    char reason[1000] = {};
  };
  struct SmallMessage {
    std::vector<std::byte> message;
    MPI_Request request;
  };

  void post_failure_receive();
  void drop_sent_messages();

  const MPI_Comm comm_;
  FailureDomain& domain_;
  const int rank_;
  int largest_tag_ = 32767;
  Failure failure_;
  MPI_Request failure_request_ = MPI_REQUEST_NULL;
  std::list<SmallMessage> small_messages_;
  std::mutex polling_;  // held while a failure goes from MPI to the domain
  std::jthread progress_;
};

}  // namespace trimtab
