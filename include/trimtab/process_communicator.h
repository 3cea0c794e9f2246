// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of one host that something else than MPI has started: an engine, a job
// scheduler, Python. The caller brings a way to exchange a few bytes between all ranks at the
// start; afterwards the ranks share memory and nothing of the caller's is used. Between hosts there
// is MPI: mpi_communicator.h.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "trimtab/communicator.h"

namespace trimtab {

// Collective over all ranks. Every rank gives the same number of bytes, at most 256, and gets those
// of all, in rank order: an all-gather. What it throws ends the start of the group on this rank;
// it should itself end where a peer does not come.
using ProcessExchange = std::function<std::vector<std::byte>(std::span<const std::byte>)>;

// This rank's end of the group of all ranks that take part in `exchange`; rank 0, 1, ... says which
// of them this is. Collective: it exchanges a few times and keeps no hold of `exchange`. A peer
// whose process dies is noticed within 0.1 s, one that is late within options.timeout.
// options.hosts must be empty: it is found out. Throws InvalidArgument for a rank that is not there
// and a timeout <= 0, and Error, on every rank, when ranks are on several hosts (processes with a
// /dev/shm of their own, such as two containers, are), or when they can't share memory.
std::unique_ptr<Communicator> make_process_communicator(int rank, const ProcessExchange& exchange,
                                                        const GroupOptions& options = {});

}  // namespace trimtab
