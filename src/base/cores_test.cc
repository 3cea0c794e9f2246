// SPDX-License-Identifier: Apache-2.0
#include "base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "base/test_folder.h"

namespace trimtab {
namespace {

TEST(Cores, ThisProcessHasSome) {
  const Cores all = usable_cores();
  EXPECT_GE(all.count, 1);
  EXPECT_LE(all.count, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_LE(all.count, all.of_machine);
  EXPECT_GE(all.nodes, 1);
}

// hwloc takes the affinity of all threads of a process together; here there is one.
TEST(Cores, HeedAffinity) {
  const int of_machine = usable_cores().of_machine;
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const Cores cores = usable_cores();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(cores, (Cores{1, 1, of_machine}));
}

TEST(Cores, OfAMachineWithHardwareThreadsAndNodes) {
  const std::string machine = "node:2 core:4 pu:2";  // 16 hardware threads, 8 a node
  if (!cores_of_synthetic(machine, "0-15")) GTEST_SKIP() << "built without hwloc";
  EXPECT_EQ(cores_of_synthetic(machine, "0-15"), (Cores{8, 2, 8}));
  EXPECT_EQ(cores_of_synthetic(machine, "0-7"), (Cores{4, 1, 8}));
  EXPECT_EQ(cores_of_synthetic(machine, "0,1"), (Cores{1, 1, 8}));    // one core's two threads
  EXPECT_EQ(cores_of_synthetic(machine, "1,3,9"), (Cores{3, 2, 8}));  // a thread of each
  EXPECT_EQ(cores_of_synthetic("no machine", "0"), std::nullopt);
}

TEST(MachineParts, OfThisMachine) {
  const MachineParts parts = machine_parts();
  ASSERT_FALSE(parts.nodes.empty());
  size_t threads = 0;
  for (const MemoryNode& node : parts.nodes) threads += node.hardware_threads.size();
  EXPECT_GE(threads, static_cast<size_t>(usable_cores().count));
  EXPECT_LE(threads, static_cast<size_t>(parts.hardware_threads));
  EXPECT_GE(parts.packages, 1);
}

TEST(MachineParts, OfAMachineWithTwoSockets) {
  const std::string machine = "package:2 node:2 l3:1 core:4 pu:2";  // 32 hardware threads
  if (!parts_of_synthetic(machine, "0-31")) GTEST_SKIP() << "built without hwloc";
  const MachineParts all = *parts_of_synthetic(machine, "0-31");
  EXPECT_EQ(all.packages, 2);
  EXPECT_EQ(all.hardware_threads, 32);
  EXPECT_EQ(all.l3_caches, 4);
  ASSERT_EQ(all.nodes.size(), 4U);
  // One hardware thread of each core.
  EXPECT_EQ(all.nodes[1].hardware_threads, (std::vector<int>{8, 10, 12, 14}));
  EXPECT_EQ(all.nodes[3].id, 3);
  const MachineParts some = *parts_of_synthetic(machine, "9,10,30,31");
  EXPECT_EQ(some.packages, 2);
  ASSERT_EQ(some.nodes.size(), 2U);
  EXPECT_EQ(some.nodes[0].hardware_threads, (std::vector<int>{9, 10}));
  EXPECT_EQ(some.nodes[1].hardware_threads, (std::vector<int>{30}));
  EXPECT_EQ(some.nodes[1].id, 3);
}

// The same as usable_cores() says where affinity is set.
TEST(MachineParts, HeedAffinity) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &before)) --last;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const MachineParts parts = machine_parts();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  ASSERT_EQ(parts.nodes.size(), 1U);
  EXPECT_EQ(parts.nodes[0].hardware_threads, std::vector<int>{last});
}

TEST(ProcessorQuota, VersionTwo) {
  const TestFolder root;
  for (const char* folder : {"", "/a", "/a/b"})
    std::filesystem::create_directories(root.path() + folder);
  EXPECT_EQ(processor_quota(root.path(), "0::/a/b\n"), std::nullopt);
  root.write("a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(processor_quota(root.path(), "0::/a/b\n"), std::nullopt);
  root.write("a/cpu.max", "250000 100000\n");
  EXPECT_EQ(processor_quota(root.path(), "0::/a/b\n"), 2.5);  // of a group around it
  root.write("a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(processor_quota(root.path(), "0::/a/b\n"), 0.5);
  EXPECT_EQ(processor_quota(root.path(), "0::/a\n"), 2.5);
  root.write("cpu.max", "300000 100000\n");  // as a container sees its own group
  EXPECT_EQ(processor_quota(root.path(), "0::/\n"), 3.0);
  EXPECT_EQ(processor_quota(root.path(), "0::/elsewhere\n"), 3.0);
}

TEST(ProcessorQuota, VersionOne) {
  const TestFolder root;
  std::filesystem::create_directories(root.path("cpu/a"));
  const std::string groups = "5:memory:/m\n4:cpu,cpuacct:/a\n1:cpuset:/x\n";
  root.write("cpu/a/cpu.cfs_quota_us", "-1\n");
  root.write("cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(processor_quota(root.path(), groups), std::nullopt);
  root.write("cpu/a/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(processor_quota(root.path(), groups), 1.5);
  EXPECT_EQ(processor_quota(root.path(), ""), std::nullopt);
  EXPECT_EQ(processor_quota(root.path(), "not a line\n1:x\n"), std::nullopt);
}

}  // namespace
}  // namespace trimtab
