// SPDX-License-Identifier: Apache-2.0
// The options that say which ranks are on one node, what a copy of a token costs between ranks, and
// how large it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command.h"
#include "trimtab/policy.h"

namespace trimtab::cli {

struct WireOptions {
  int nodes = 1;
  std::vector<std::string> rules;  // names, see parse_node_rules()
  int groups = 1;                  // groups of experts of the model's router
  std::string topology;            // file; empty: `nodes` says all
  int64_t token_bytes = 0;         // of one token's row; 0: not said, traffic is in copies alone
};

// Adds --nodes and --topology.
void add_nodes(Command& command, WireOptions& options);
// Adds --node-rules and --groups. about_groups: who else uses them.
void add_node_rules(Command& command, WireOptions& options, const std::string& about_groups);
// Adds --token-bytes.
void add_token_bytes(Command& command, WireOptions& options);

// The node of each rank, and the prices of the file. Throws InvalidArgument when nodes do not
// divide ranks or the file is for other ranks, and Error as read_topology().
Topology topology_of(const WireOptions& options, int num_ranks);
// "4", or the file.
std::string nodes_text(const WireOptions& options);

}  // namespace trimtab::cli
