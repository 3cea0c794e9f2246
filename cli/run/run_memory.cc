// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "comm/rank_bytes.h"

namespace trimtab::cli {

namespace {

double in_mb(size_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

}  // namespace

size_t RunMemory::total() const {
  size_t all = shares_weights && !ranks.empty() ? ranks.front().weights : 0;
  for (const RankMemory& rank : ranks) all += rank.rest() + (shares_weights ? 0 : rank.weights);
  return all;
}

void gather(Communicator& comm, RunMemory& memory) {
  const auto all = bytes_of_ranks(comm, std::as_bytes(std::span(&memory.ranks[comm.rank()], 1)));
  for (size_t rank = 0; rank < all.size(); ++rank)
    memory.ranks[rank] = values_of<RankMemory>(all[rank]).front();
}

std::string in_text(const RunMemory& memory) {
  std::string text =
      "memory in MB\n rank    weights    experts     spares  workspace   keys+val     logits    "
      "    all\n";
  const auto add = [&](size_t rank, const RankMemory& m) {
    fmt::format_to(std::back_inserter(text),
                   "{:5} {:10.2f} {:10.2f} {:10.2f} {:10.2f} {:10.2f} {:10.2f} {:10.2f}\n", rank,
                   in_mb(m.own_weights), in_mb(m.expert_slots), in_mb(m.expert_spares),
                   in_mb(m.workspace), in_mb(m.kv), in_mb(m.logits),
                   in_mb(m.own_weights + m.rest()));
  };
  for (size_t rank = 0; rank < memory.ranks.size(); ++rank) add(rank, memory.ranks[rank]);
  fmt::format_to(std::back_inserter(text), "all ranks together: {:.2f}", in_mb(memory.total()));
  if (memory.shares_weights && memory.ranks.size() > 1) {
    fmt::format_to(std::back_inserter(text),
                   ", as they are threads of one process, which has one set of weights ({:.2f})",
                   in_mb(memory.ranks.front().weights));
  }
  text += "\n";
  if (memory.weights_mapped)
    text += "weights: mapped from the files; processes of one host share these pages\n";
  return text;
}

}  // namespace trimtab::cli
