// SPDX-License-Identifier: Apache-2.0
#include "trimtab/process_communicator.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "comm/process_group.h"
#include "comm/stream_outside.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// The caller's exchange, whose answers are what memory is sized by.
ProcessExchange checked(const ProcessExchange& exchange) {
  return [&exchange, ranks = size_t{0}](std::span<const std::byte> mine) mutable {
    std::vector<std::byte> all = exchange(mine);
    const size_t wanted = ranks == 0 ? all.size() / mine.size() : ranks;
    if (wanted == 0 || all.size() != wanted * mine.size()) {
      throw InvalidArgument(cat("the exchange of ", mine.size(), " bytes gave ", all.size(),
                                ranks == 0 ? " bytes" : cat(" bytes for ", ranks, " ranks"),
                                ", not as many of each rank"));
    }
    ranks = wanted;
    return all;
  };
}

}  // namespace

std::unique_ptr<Communicator> make_process_communicator(int rank,
                                                        const ProcessExchange& caller_exchange,
                                                        const GroupOptions& options,
                                                        std::shared_ptr<HostStreams> streams) {
  if (!options.hosts.empty())
    throw InvalidArgument("processes find out their hosts; GroupOptions::hosts is for threads");
  if (options.timeout.count() <= 0)
    throw InvalidArgument(cat("a timeout must be above 0 ms, got ", options.timeout.count()));
  const ProcessExchange exchange = checked(caller_exchange);
  GroupOptions group = options;
  group.hosts = find_hosts(exchange);
  const auto ranks = static_cast<int>(group.hosts.size());
  if (rank < 0 || rank >= ranks)
    throw InvalidArgument(cat("rank ", rank, " of a group of ", ranks, " processes"));
  const auto other = std::ranges::find_if(group.hosts, [](int32_t host) { return host != 0; });
  if (other != group.hosts.end() && streams == nullptr) {
    throw Error(cat("rank ", other - group.hosts.begin(),
                    " does not see the shared memory (/dev/shm) of rank 0: they are on two hosts, "
                    "or in containers that do not share it; ranks of several hosts need streams "
                    "between them, or MPI"));
  }
  auto [domain, state] = begin_process_group(rank, group, exchange);
  if (other != group.hosts.end()) StreamOutside::connect(streams, *domain, rank);
  return make_end(std::move(domain), ranks, rank, state);
}

}  // namespace trimtab
