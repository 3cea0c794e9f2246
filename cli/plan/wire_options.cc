// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/wire_options.h"

#include <limits>

#include "cli/output/text.h"
#include "cli/plan/planning_options.h"
#include "trimtab/error.h"
#include "trimtab/topology_file.h"

namespace trimtab::cli {

void add_nodes(Command& command, WireOptions& options) {
  command.number("--nodes", options.nodes, "Nodes, equally many ranks on each in order")
      .between(1, kMostSizes)
      .shows_default();
  command
      .text("--topology", options.topology,
            "The node of each rank, and what a copy of a token costs between ranks (JSON, see "
            "docs/formats.md); instead of --nodes")
      .type("FILE");
}

void add_node_rules(Command& command, WireOptions& options, const std::string& about_groups) {
  command
      .list(
          "--node-rules", options.rules,
          "What placements keep to on several nodes: groups (the experts of a group on one node), "
          "even (replicas spread evenly), all (each node holds every expert)")
      .one_of({"groups", "even", "all"})
      .type("NAME,...");
  command
      .number("--groups", options.groups, "Groups of experts of the model's router" + about_groups)
      .between(1, kMostSizes)
      .shows_default();
}

void add_token_bytes(Command& command, WireOptions& options) {
  command
      .number("--token-bytes", options.token_bytes,
              "Bytes of one copy of a token (hidden size x bytes of a value): traffic in bytes too")
      .between(1, std::numeric_limits<int>::max());
}

Topology topology_of(const WireOptions& options, int num_ranks) {
  if (options.topology.empty()) return Topology::even(num_ranks, options.nodes);
  if (options.nodes != 1) throw UsageError("--nodes: the file of --topology says it");
  Topology topology = read_topology(options.topology);
  try {
    check_topology(topology, num_ranks);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(options.topology + ": " + error.what());
  }
  return topology;
}

std::string nodes_text(const WireOptions& options) {
  return options.topology.empty() ? std::to_string(options.nodes)
                                  : "as in " + printable(valid_utf8(options.topology));
}

}  // namespace trimtab::cli
