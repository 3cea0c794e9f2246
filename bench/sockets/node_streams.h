// SPDX-License-Identifier: Apache-2.0
// What the cores of one memory node get of the memory of another.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/cores.h"
#include "bench/experts/paired.h"

namespace trimtab::bench {

struct NodeStream {
  int cores_of = 0, memory_of = 0;  // MemoryNode::id
  int threads = 0;
  Spread gbytes;  // GB/s of cold memory
  double pages_there =
      0;  // of the memory on memory_of, 0 to 1; less than 0: the system says nothing
};

struct NodeEffort {
  double seconds = 0.5;                // for each row, and
  int least = 5;                       // rounds
  size_t memory = size_t{1280} << 20;  // of each node; at most a fair part of what is free
};

// Every node reads the memory of every node, one pair after the other, with a thread on each core.
std::vector<NodeStream> measure_node_streams(std::span<const MemoryNode> nodes,
                                             const NodeEffort& effort);

// One node cut into `count` parts with as many cores, as if they were nodes: to try out what is
// meant for several. Throws InvalidArgument for fewer cores than parts.
std::vector<MemoryNode> pretend_nodes(std::span<const MemoryNode> nodes, int count);

}  // namespace trimtab::bench
