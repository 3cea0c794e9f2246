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
#include "trimtab/process_communicator.h"

namespace trimtab {

struct ProcessGroup {
  std::shared_ptr<FailureDomain> domain;
  GroupState* state = nullptr;  // the state of the group of all ranks, on this host
};

// Collective over all ranks. options.hosts: the host of each, as find_hosts() numbers them.
ProcessGroup begin_process_group(int rank, const GroupOptions& options,
                                 const ProcessExchange& exchange);
// A rank's end of the first group, which has all ranks of the domain.
std::unique_ptr<Communicator> make_end(std::shared_ptr<FailureDomain> domain, int ranks, int rank,
                                       GroupState* state);
// The host of each rank, numbered in order of first appearance: [ranks].
std::vector<int32_t> find_hosts(const ProcessExchange& exchange);

}  // namespace trimtab
