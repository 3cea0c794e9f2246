// SPDX-License-Identifier: Apache-2.0
// How much of the machine this process may use.
#pragma once

#include <optional>
#include <string>
#include <string_view>

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

// The least quota in processors that cgroup files set, nothing where there is none. root: where
// control groups are mounted, /sys/fs/cgroup; groups: the content of /proc/self/cgroup.
std::optional<double> processor_quota(const std::string& root, std::string_view groups);

}  // namespace trimtab
