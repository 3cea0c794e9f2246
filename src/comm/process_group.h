// SPDX-License-Identifier: Apache-2.0
// Makes the first group of ranks that are processes, so that the ranks of a host share memory. The
// caller brings a way to exchange a few bytes between all ranks, such as MPI.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/failure_domain.h"
#include "comm/host_memory.h"
#include "trimtab/communicator.h"

namespace trimtab {

struct ProcessGroup {
  std::shared_ptr<FailureDomain> domain;
  GroupState* state = nullptr;  // the state of the group of all ranks, on this host
};

// Collective over all ranks. options.hosts: the host of each, as find_hosts() numbers them.
ProcessGroup begin_process_group(int rank, const GroupOptions& options,
                                 const HostMemory::Exchange& exchange);
// The host of each rank, numbered in order of first appearance: [ranks].
std::vector<int32_t> find_hosts(const HostMemory::Exchange& exchange);

}  // namespace trimtab
