// SPDX-License-Identifier: Apache-2.0
#include "bench/sockets/node_streams.h"

#include <algorithm>
#include <memory>

#include "base/cat.h"
#include "base/run_on_nodes.h"
#include "bench/machine/ceilings.h"
#include "bench/machine/stopwatch.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

// Rates of rounds, as many as the effort allows.
Spread gbytes_of(Ceilings& ceilings, const NodeEffort& effort) {
  std::vector<double> rates;
  const Stopwatch watch(CLOCK_MONOTONIC);
  while (std::ssize(rates) < effort.least || watch.seconds() < effort.seconds)
    rates.push_back(1e-9 * ceilings.stream());
  return spread_of(std::move(rates));
}

}  // namespace

std::vector<NodeStream> measure_node_streams(std::span<const MemoryNode> nodes,
                                             const NodeEffort& effort) {
  std::vector<NodeStream> streams;
  for (const MemoryNode& memory_node : nodes) {
    auto memory = std::make_shared<Buffer>();
    run_on_nodes({&memory_node, 1}, FirstTouch::kLocal, [&] {
      Team team(static_cast<int>(memory_node.hardware_threads.size()));
      *memory = touched_memory(cold_bytes(effort.memory), team);
    });
    const double there = share_on_node({memory->data(), memory->bytes()}, memory_node.id);
    for (const MemoryNode& node : nodes) {
      run_on_nodes({&node, 1}, FirstTouch::kLocal, [&] {
        Team team(static_cast<int>(node.hardware_threads.size()));
        Ceilings ceilings(chosen_loops(), team, Buffer(memory->data(), memory->bytes(), memory));
        streams.push_back(
            {node.id, memory_node.id, team.size(), gbytes_of(ceilings, effort), there});
      });
    }
  }
  return streams;
}

std::vector<MemoryNode> pretend_nodes(std::span<const MemoryNode> nodes, int count) {
  std::vector<int> threads;
  for (const MemoryNode& node : nodes)
    threads.insert(threads.end(), node.hardware_threads.begin(), node.hardware_threads.end());
  if (std::ssize(threads) < count) {
    throw InvalidArgument(
        cat(count, " nodes can't be made of ", threads.size(), " cores; each needs one"));
  }
  std::vector<MemoryNode> parts(count);
  const int64_t each = std::ssize(threads) / count;
  for (int i = 0; i < count; ++i) {
    parts[i].id = nodes[0].id;  // where its memory really is
    parts[i].hardware_threads.assign(threads.begin() + i * each, threads.begin() + (i + 1) * each);
    parts[i].bytes = nodes[0].bytes / static_cast<size_t>(count);
  }
  return parts;
}

}  // namespace trimtab::bench
