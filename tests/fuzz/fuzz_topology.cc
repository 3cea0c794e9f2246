// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of topologies: any text is either refused with a FormatError whose place is in
// it, or is a topology that a plan for its ranks takes.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "trimtab/error.h"
#include "trimtab/table.h"
#include "trimtab/topology_file.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const trimtab::Topology topology = trimtab::parse_topology(text, "fuzz");
    int ranks = static_cast<int>(topology.node_of_rank.size());
    for (; ranks == 0 ||
           (topology.has_prices() && trimtab::cells(ranks, ranks) < topology.prices.size());)
      ++ranks;
    trimtab::check_topology(topology, ranks);
    check(topology.num_nodes() <= ranks);
  } catch (const trimtab::FormatError& error) {
    check(error.offset() <= static_cast<int64_t>(size));
  }
  return 0;
}
