// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "bench/sockets/layer_on_nodes.h"
#include "bench/sockets/node_streams.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

const NodeEffort kBrief = {.seconds = 0, .least = 3, .memory = size_t{8} << 20};

// As many pretended nodes as there are cores, at most two.
std::vector<MemoryNode> some_nodes() {
  const std::vector<MemoryNode> real = machine_parts().nodes;
  size_t cores = 0;
  for (const MemoryNode& node : real) cores += node.hardware_threads.size();
  return pretend_nodes(real, cores >= 2 ? 2 : 1);
}

TEST(SocketBench, EveryNodeReadsEveryMemory) {
  const std::vector<MemoryNode> nodes = some_nodes();
  const std::vector<NodeStream> streams = measure_node_streams(nodes, kBrief);
  ASSERT_EQ(streams.size(), nodes.size() * nodes.size());
  for (const NodeStream& stream : streams) {
    EXPECT_GT(stream.gbytes.median, 0);
    EXPECT_EQ(stream.threads, static_cast<int>(nodes[0].hardware_threads.size()));
    // Pretended nodes have the memory of the first one.
    if (stream.pages_there >= 0) {
      EXPECT_EQ(stream.pages_there, 1.0);
    }
  }
}

TEST(SocketBench, PretendedNodesShareOutTheCores) {
  const std::vector<MemoryNode> real = {{.id = 3, .hardware_threads = {1, 2, 3}, .bytes = 100},
                                        {.id = 4, .hardware_threads = {7, 9}, .bytes = 100}};
  const std::vector<MemoryNode> nodes = pretend_nodes(real, 2);
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[0].hardware_threads, (std::vector<int>{1, 2}));
  EXPECT_EQ(nodes[1].hardware_threads, (std::vector<int>{3, 7}));
  EXPECT_EQ(nodes[1].id, 3);
  EXPECT_THROW(pretend_nodes(real, 6), InvalidArgument);
}

TEST(SocketBench, TimesEveryLayout) {
  const std::vector<MemoryNode> nodes = some_nodes();
  const ModelShape model{"small", 128, 96, 16, 4};
  const std::vector<int64_t> tokens = {1, 8};
  for (const NodeLayout layout : {NodeLayout::kOneNode, NodeLayout::kFirstMemory,
                                  NodeLayout::kInterleaved, NodeLayout::kSliced}) {
    SCOPED_TRACE(name(layout));
    std::vector<NodeLayoutRow> rows;
    try {
      rows = bench_layer_on_nodes(nodes, layout, model, find_weight_dtype("w8a8"), tokens, kBrief);
    } catch (const Error& error) {
      // Not every container may spread memory.
      EXPECT_EQ(layout, NodeLayout::kInterleaved) << error.what();
      continue;
    }
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_EQ(rows[1].tokens, 8);
    for (const NodeLayoutRow& row : rows) {
      EXPECT_EQ(row.layout, layout);
      EXPECT_GT(row.ms.median, 0);
      // One token picks 4 experts, of 3 x 128 x 96 weights of a byte.
      if (row.tokens == 1) {
        EXPECT_NEAR(row.gbytes * row.ms.median, 4e-6 * 3 * 128 * 96, 1e-9);
      }
    }
  }
  EXPECT_EQ(layouts_for(1).size(), 1U);
  EXPECT_EQ(layouts_for(2).size(), 4U);
  if (nodes.size() < 2) return;
  const ModelShape odd{"odd", 128, 97, 16, 4};
  EXPECT_THROW(bench_layer_on_nodes(nodes, NodeLayout::kSliced, odd, find_weight_dtype("f32"),
                                    tokens, kBrief),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab::bench
