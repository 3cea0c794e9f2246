// SPDX-License-Identifier: Apache-2.0
// How much of the machine this process may use.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trimtab {

// Cores and memory nodes of the machine, as far as this process may run on them.
struct Cores {
  int count = 1;       // physical cores: hardware threads of one core count once
  int nodes = 1;       // memory nodes (NUMA) that have at least one of these cores
  int of_machine = 1;  // physical cores that all processes here have together
  friend bool operator==(const Cores&, const Cores&) = default;
};

// What the affinity of the process, its cpuset and the processor quota of its control groups leave
// to it; affinity does not count in of_machine. A quota of 2.5 processors counts as 3 cores.
// Without hwloc every hardware thread counts as a core, and the machine as one node.
Cores usable_cores();

// The same of a made-up machine in hwloc's notation, such as "node:2 core:4 pu:2", for a process
// that may run on these hardware threads ("0-3,8"); nothing without hwloc.
std::optional<Cores> cores_of_synthetic(const std::string& machine, const std::string& threads);

// A memory node (NUMA) with cores that this process may use.
struct MemoryNode {
  int id = 0;                         // the system's number of it
  std::vector<int> hardware_threads;  // one of each of these cores, by the system's numbers
  size_t bytes = 0;                   // memory of the node; 0: not known
};

// What the machine is made of, as far as this process may run on it.
struct MachineParts {
  bool by_hwloc = false;     // without it there is one node, and nothing is known of the rest
  int packages = 1;          // sockets
  int hardware_threads = 1;  // several of a core count
  int l3_caches = 0;
  size_t l3_bytes = 0;            // of the largest one
  std::vector<MemoryNode> nodes;  // at least one
};

MachineParts machine_parts();
// The same of a made-up machine; see cores_of_synthetic().
std::optional<MachineParts> parts_of_synthetic(const std::string& machine,
                                               const std::string& threads);

// The least quota in processors that cgroup files set, nothing where there is none. root: where
// control groups are mounted, /sys/fs/cgroup; groups: the content of /proc/self/cgroup.
std::optional<double> processor_quota(const std::string& root, std::string_view groups);

}  // namespace trimtab
