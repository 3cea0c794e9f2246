// SPDX-License-Identifier: Apache-2.0
// Ranks as processes that something else than MPI has started: an engine, a job scheduler, Python.
// The caller brings a way to exchange a few bytes between all ranks at the start. Afterwards the
// ranks of a host share memory, and between hosts messages travel over streams of the caller's. To
// leave both to MPI: mpi_communicator.h.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trimtab/communicator.h"

namespace trimtab {

// Collective over all ranks. Every rank gives the same number of bytes, at most 256, and gets those
// of all, in rank order: an all-gather. What it throws ends the start of the group on this rank;
// it should itself end where a peer does not come.
using ProcessExchange = std::function<std::vector<std::byte>(std::span<const std::byte>)>;

// Which host this process is on, in at most 127 bytes: processes that get the same share memory.
// Throws Error where there is no /dev/shm.
std::string host_id();

// Streams of bytes between this rank and each rank of another host, such as TCP connections or the
// process group of an engine. Bytes arrive as they were sent and in that order. Per peer one thread
// sends and another one receives, at the same time; the lengths of the calls to receive() are those
// of the peer's calls to send(). Both block, without a limit of time, and throw an exception when
// the peer can't be reached any more: that is how the loss of a host is noticed at once and not
// only after the timeout. A thread whose peer neither sends nor goes away outlives the group.
class HostStreams {
 public:
  virtual ~HostStreams() = default;
  // Returns once the bytes may be overwritten. rank: of the group of all ranks.
  virtual void send(int rank, std::span<const std::byte> bytes) = 0;
  virtual void receive(int rank, std::span<std::byte> bytes) = 0;
};

// This rank's end of the group of all ranks that take part in `exchange`; rank 0, 1, ... says which
// of them this is. Collective: it exchanges a few times and keeps no hold of `exchange`. A peer
// whose process dies is noticed within 0.1 s, one that is late within options.timeout.
// options.hosts must be empty: it is found out. streams: used between hosts, which are processes
// with a /dev/shm of their own (two containers are two hosts). Throws InvalidArgument for a rank
// that is not there and a timeout <= 0, and Error, on every rank, when ranks are on several hosts
// and there are no streams, or when those of a host can't share memory.
std::unique_ptr<Communicator> make_process_communicator(
    int rank, const ProcessExchange& exchange, const GroupOptions& options = {},
    std::shared_ptr<HostStreams> streams = nullptr);

}  // namespace trimtab
