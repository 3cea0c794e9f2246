// SPDX-License-Identifier: Apache-2.0
#include "base/run_on_nodes.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "trimtab/error.h"
#include "trimtab/team.h"
#include "trimtab/tensor.h"

namespace trimtab {
namespace {

int threads_of_this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  return CPU_COUNT(&set);
}

TEST(RunOnNodes, ThreadsKeepToTheNode) {
  const std::vector<MemoryNode> nodes = machine_parts().nodes;
  MemoryNode one = nodes[0];
  one.hardware_threads.resize(1);
  const int before = threads_of_this_thread();
  run_on_nodes({&one, 1}, FirstTouch::kLocal, [&] {
    EXPECT_EQ(threads_of_this_thread(), 1);
    EXPECT_EQ(sched_getcpu(), one.hardware_threads[0]);
    // Threads that are started there, too.
    Team team(3);
    team.for_each(100, [&](int64_t) { EXPECT_EQ(sched_getcpu(), one.hardware_threads[0]); });
  });
  EXPECT_EQ(threads_of_this_thread(), before);
  EXPECT_THROW(run_on_nodes(nodes, FirstTouch::kLocal, [] { throw std::runtime_error("x"); }),
               std::runtime_error);
  const MemoryNode nowhere{.hardware_threads = {1'000'000}};
  EXPECT_THROW(run_on_nodes({&nowhere, 1}, FirstTouch::kLocal, [] {}), Error);
}

TEST(RunOnNodes, MemoryIsWhereItIsTouched) {
  for (const MemoryNode& node : machine_parts().nodes) {
    const Buffer memory(size_t{8} << 20);
    run_on_nodes({&node, 1}, FirstTouch::kLocal,
                 [&] { std::memset(memory.data(), 1, memory.bytes()); });
    const double share = share_on_node({memory.data(), memory.bytes()}, node.id);
    if (share < 0) GTEST_SKIP() << "the system does not say where pages are";
    EXPECT_EQ(share, 1.0) << node.id;
  }
}

TEST(RunOnNodes, MemoryIsSpreadOverNodes) {
  const std::vector<MemoryNode> nodes = machine_parts().nodes;
  const Buffer memory(size_t{8} << 20);
  try {
    run_on_nodes(nodes, FirstTouch::kInterleaved,
                 [&] { std::memset(memory.data(), 1, memory.bytes()); });
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();  // not every container may
  }
  double all = 0;
  for (const MemoryNode& node : nodes) {
    const double share = share_on_node({memory.data(), memory.bytes()}, node.id);
    if (share < 0) GTEST_SKIP() << "the system does not say where pages are";
    EXPECT_NEAR(share, 1.0 / static_cast<double>(nodes.size()), 0.3);
    all += share;
  }
  EXPECT_NEAR(all, 1.0, 1e-9);
}

}  // namespace
}  // namespace trimtab
