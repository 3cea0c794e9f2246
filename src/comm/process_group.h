// SPDX-License-Identifier: Apache-2.0
// How the ranks of a first group come to share the memory of their hosts when they are processes.
// Whoever starts them brings a way for all to exchange a few bytes; MPI is one.
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
  GroupState* state = nullptr;  // of the group of all ranks, on this host
};

// Collective over all ranks. options.hosts: the host of each, as find_hosts() numbers them.
ProcessGroup begin_process_group(int rank, const GroupOptions& options,
                                 const HostMemory::Exchange& exchange);
// [ranks] in order of first appearance.
std::vector<int32_t> find_hosts(const HostMemory::Exchange& exchange);

}  // namespace trimtab
