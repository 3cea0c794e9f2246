// SPDX-License-Identifier: Apache-2.0
// The experts stage of one layer on several memory nodes, with its weights laid out in several
// ways.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/cores.h"
#include "bench/experts/model_shape.h"
#include "bench/experts/paired.h"
#include "bench/experts/weight_dtype.h"
#include "bench/sockets/node_streams.h"

namespace trimtab::bench {

enum class NodeLayout {
  kOneNode,      // the first node's cores and memory alone
  kFirstMemory,  // all cores, the memory of the first node
  kInterleaved,  // all cores, pages of all nodes in turn
  kSliced        // all cores, each node a part of every expert in its own memory; parts are summed
};

std::string_view name(NodeLayout layout);
// Those that differ on so many nodes.
std::vector<NodeLayout> layouts_for(size_t nodes);

struct NodeLayoutRow {
  NodeLayout layout;
  int threads = 0;
  int64_t tokens = 0;
  Spread ms;
  double gbytes = 0;  // GB/s: bytes of the active experts' weights over the median
};

// Times the stage for each number of tokens, picks by natural routing, other picks in every round.
// Throws Error where the system does not let memory be spread, and InvalidArgument for sizes that
// can't be cut into as many parts as there are nodes.
std::vector<NodeLayoutRow> bench_layer_on_nodes(std::span<const MemoryNode> nodes,
                                                NodeLayout layout, const ModelShape& model,
                                                const WeightDType& dtype,
                                                std::span<const int64_t> tokens,
                                                const NodeEffort& effort);

}  // namespace trimtab::bench
