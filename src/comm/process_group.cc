// SPDX-License-Identifier: Apache-2.0
#include "comm/process_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "comm/group.h"
#include "comm/group_communicator.h"

namespace trimtab {

std::vector<int32_t> find_hosts(const ProcessExchange& exchange) {
  struct Id {
    char text[128];
  };
  Id mine = {};
  std::strncpy(mine.text, host_id().c_str(), sizeof mine.text - 1);
  std::vector<int32_t> hosts;
  std::vector<std::string> seen;
  for (const Id& id : exchange_values(exchange, mine)) {
    const auto at = std::ranges::find(seen, id.text);
    hosts.push_back(static_cast<int32_t>(at - seen.begin()));
    if (at == seen.end()) seen.emplace_back(id.text);
  }
  return hosts;
}

ProcessGroup begin_process_group(int rank, const GroupOptions& options,
                                 const ProcessExchange& exchange) {
  const std::vector<int32_t>& hosts = options.hosts;
  const auto ranks = static_cast<int>(hosts.size());
  const auto memory = HostMemory::share(rank, hosts, exchange);

  // The first rank of each host keeps what the host shares.
  const int64_t first = std::ranges::find(hosts, hosts[rank]) - hosts.begin();
  const bool keeper = first == rank;
  Buffer kept;
  if (keeper) kept = memory->allocate(FailureDomain::state_bytes(ranks));
  void* const domain_state = exchange_values(exchange, static_cast<void*>(kept.data()))[first];
  ProcessGroup group;
  group.domain =
      std::make_shared<FailureDomain>(ranks, options, memory, std::move(kept), domain_state);
  if (keeper) group.state = group.domain->make_group(std::ranges::count(hosts, hosts[first]));
  group.state = exchange_values(exchange, group.state)[first];
  return group;
}

std::unique_ptr<Communicator> make_end(std::shared_ptr<FailureDomain> domain, int ranks, int rank,
                                       GroupState* state) {
  std::vector<int> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<GroupCommunicator>(std::move(domain), std::move(members), rank, state);
}

}  // namespace trimtab
