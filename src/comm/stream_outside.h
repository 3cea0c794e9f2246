// SPDX-License-Identifier: Apache-2.0
// The ranks of other hosts, reached over the caller's streams.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/failure_domain.h"
#include "comm/outside.h"
#include "comm/stream_link.h"
#include "trimtab/process_communicator.h"

namespace trimtab {

class StreamOutside final : public Outside {
 public:
  // Makes the outside of a domain, which owns it, and then begins to send and to receive: a stream
  // may fail at once. rank: of the domain.
  static void connect(const std::shared_ptr<HostStreams>& streams, FailureDomain& domain, int rank);
  ~StreamOutside() override;
  StreamOutside(const StreamOutside&) = delete;
  StreamOutside& operator=(const StreamOutside&) = delete;

  std::unique_ptr<OutsidePeers> peers(std::vector<int> members, int rank, std::vector<bool> here,
                                      int64_t number) override;
  void poll() noexcept override {}  // threads move the messages
  void tell_failed(int culprit, int blamed, const char* reason) noexcept override;

 private:
  StreamOutside(const std::shared_ptr<HostStreams>& streams, FailureDomain& domain, int rank);
  void open();
  void close(std::chrono::steady_clock::time_point end) noexcept;

  FailureDomain& domain_;
  std::vector<std::shared_ptr<StreamLink>> links_;  // [ranks] null: the rank is on this host
};

}  // namespace trimtab
