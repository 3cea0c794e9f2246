// SPDX-License-Identifier: Apache-2.0
// Streams between hosts for tests: a TCP connection between each two ranks.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "trimtab/process_communicator.h"

namespace trimtab {

class TcpStreams final : public HostStreams {
 public:
  // Collective. Each rank listens at the first address of its host that is not of the host alone.
  TcpStreams(int rank, const ProcessExchange& exchange);
  ~TcpStreams() override;
  TcpStreams(const TcpStreams&) = delete;
  TcpStreams& operator=(const TcpStreams&) = delete;

  void send(int rank, std::span<const std::byte> bytes) override;
  void receive(int rank, std::span<std::byte> bytes) override;

 private:
  std::vector<int> sockets_;  // [ranks] -1: this rank
};

}  // namespace trimtab
