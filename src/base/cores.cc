// SPDX-License-Identifier: Apache-2.0
#include "base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <thread>
#include <utility>

#ifdef TRIMTAB_HAS_HWLOC
#include <hwloc.h>
#endif

namespace trimtab {
namespace {

#ifdef TRIMTAB_HAS_HWLOC

class Topology {
 public:
  Topology() { hwloc_topology_init(&topology_); }
  ~Topology() { hwloc_topology_destroy(topology_); }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  bool describe(const std::string& machine) {
    return hwloc_topology_set_synthetic(topology_, machine.c_str()) == 0;
  }
  bool load() { return hwloc_topology_load(topology_) == 0; }
  // The objects of a type that have at least one hardware thread of the set.
  int count(hwloc_obj_type_t type, hwloc_const_cpuset_t threads) const {
    int count = 0;
    for (hwloc_obj_t at = nullptr;
         (at = hwloc_get_next_obj_by_type(topology_, type, at)) != nullptr;) {
      if (at->cpuset != nullptr && hwloc_bitmap_intersects(at->cpuset, threads) != 0) ++count;
    }
    return count;
  }
  Cores cores(hwloc_const_cpuset_t threads) const {
    return {std::max(1, count(HWLOC_OBJ_CORE, threads)),
            std::max(1, count(HWLOC_OBJ_NUMANODE, threads)),
            std::max(1, count(HWLOC_OBJ_CORE, hwloc_topology_get_allowed_cpuset(topology_)))};
  }
  MachineParts parts(hwloc_const_cpuset_t threads) const {
    MachineParts parts{.by_hwloc = true,
                       .packages = std::max(1, count(HWLOC_OBJ_PACKAGE, threads)),
                       .hardware_threads = std::max(1, count(HWLOC_OBJ_PU, threads)),
                       .l3_caches = count(HWLOC_OBJ_L3CACHE, threads)};
    for (hwloc_obj_t at = nullptr; (at = next(HWLOC_OBJ_L3CACHE, at)) != nullptr;)
      parts.l3_bytes = std::max<size_t>(parts.l3_bytes, at->attr->cache.size);
    for (hwloc_obj_t at = nullptr; (at = next(HWLOC_OBJ_NUMANODE, at)) != nullptr;) {
      MemoryNode node{.id = static_cast<int>(at->os_index),
                      .bytes = at->attr->numanode.local_memory};
      for (hwloc_obj_t core = nullptr; (core = next(HWLOC_OBJ_CORE, core)) != nullptr;) {
        if (at->cpuset == nullptr || hwloc_bitmap_intersects(at->cpuset, core->cpuset) == 0)
          continue;
        const int first = first_of_both(core->cpuset, threads);
        if (first >= 0) node.hardware_threads.push_back(first);
      }
      if (!node.hardware_threads.empty()) parts.nodes.push_back(std::move(node));
    }
    return parts;
  }
  // Where this process may run.
  bool binding(hwloc_cpuset_t threads) const {
    return hwloc_get_cpubind(topology_, threads, HWLOC_CPUBIND_PROCESS) == 0;
  }

 private:
  hwloc_obj_t next(hwloc_obj_type_t type, hwloc_obj_t at) const {
    return hwloc_get_next_obj_by_type(topology_, type, at);
  }
  // The first hardware thread that is in both sets; -1: none.
  static int first_of_both(hwloc_const_cpuset_t a, hwloc_const_cpuset_t b) {
    int thread = -1;
    while ((thread = hwloc_bitmap_next(a, thread)) >= 0 &&
           hwloc_bitmap_isset(b, static_cast<unsigned>(thread)) == 0) {
    }
    return thread;
  }

  hwloc_topology_t topology_ = nullptr;
};

class CpuSet {
 public:
  CpuSet() : set_(hwloc_bitmap_alloc()) {}
  ~CpuSet() { hwloc_bitmap_free(set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
  operator hwloc_bitmap_t() const { return set_; }

 private:
  hwloc_bitmap_t set_;
};

// What `ask` finds out of this machine's topology and the hardware threads of this process.
template <class Result, class Ask>
std::optional<Result> by_hwloc(const Ask& ask) {
  Topology topology;
  const CpuSet threads;
  if (!topology.load() || !topology.binding(threads)) return std::nullopt;
  return ask(topology, threads);
}

std::optional<Cores> cores_by_hwloc() {
  return by_hwloc<Cores>(
      [](const Topology& t, hwloc_const_cpuset_t threads) { return t.cores(threads); });
}

std::optional<MachineParts> parts_by_hwloc() {
  return by_hwloc<MachineParts>(
      [](const Topology& t, hwloc_const_cpuset_t threads) { return t.parts(threads); });
}

#else

std::optional<Cores> cores_by_hwloc() {
  return std::nullopt;
}
std::optional<MachineParts> parts_by_hwloc() {
  return std::nullopt;
}

#endif

// The hardware threads that this thread may run on. Machines of more than 1,024 need a longer set
// than cpu_set_t.
std::vector<int> threads_by_affinity() {
  std::vector<int> threads;
  for (int most = 1024; threads.empty() && most <= 1 << 20; most *= 2) {
    cpu_set_t* const set = CPU_ALLOC(most);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(most);
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int i = 0; i < most; ++i) {
        if (CPU_ISSET_S(i, bytes, set)) threads.push_back(i);
      }
    }
    CPU_FREE(set);
  }
  if (threads.empty()) {
    threads.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(threads.begin(), threads.end(), 0);
  }
  return threads;
}

Cores cores_by_affinity() {
  const int threads = static_cast<int>(threads_by_affinity().size());
  return {threads, 1, std::max(threads, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)))};
}

std::string content(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// "200000 100000": 2 processors; "max 100000", "-1 100000" or anything else: no quota.
std::optional<double> quota_of(const std::string& quota_and_period) {
  std::istringstream words(quota_and_period);
  double quota = 0, period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

void keep_least(std::optional<double>& least, std::optional<double> quota) {
  if (quota && (!least || *quota < *least)) least = quota;
}

// The quotas of a group and all groups that it is in. read(folder): of one of them.
template <class Read>
void keep_least_above(std::optional<double>& least, std::string group, const Read& read) {
  for (;;) {
    keep_least(least, read(group == "/" ? std::string() : group));
    if (group.empty() || group == "/") return;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

std::optional<double> processor_quota(const std::string& root, std::string_view groups) {
  std::optional<double> least;
  std::istringstream lines{std::string(groups)};
  // "0::/path" of version 2; "4:cpu,cpuacct:/path" of version 1.
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      keep_least_above(least, group, [&](const std::string& folder) {
        return quota_of(content(root + folder + "/cpu.max"));
      });
    } else if (controllers.find(",cpu,") != std::string::npos) {
      keep_least_above(least, group, [&](const std::string& folder) {
        const std::string cpu = root + "/cpu" + folder + "/cpu.cfs_";
        return quota_of(content(cpu + "quota_us") + " " + content(cpu + "period_us"));
      });
    }
  }
  return least;
}

std::optional<Cores> cores_of_synthetic([[maybe_unused]] const std::string& machine,
                                        [[maybe_unused]] const std::string& threads) {
#ifdef TRIMTAB_HAS_HWLOC
  Topology topology;
  const CpuSet set;
  if (!topology.describe(machine) || !topology.load() ||
      hwloc_bitmap_list_sscanf(set, threads.c_str()) != 0) {
    return std::nullopt;
  }
  return topology.cores(set);
#else
  return std::nullopt;
#endif
}

std::optional<MachineParts> parts_of_synthetic([[maybe_unused]] const std::string& machine,
                                               [[maybe_unused]] const std::string& threads) {
#ifdef TRIMTAB_HAS_HWLOC
  Topology topology;
  const CpuSet set;
  if (topology.describe(machine) && topology.load() &&
      hwloc_bitmap_list_sscanf(set, threads.c_str()) == 0) {
    return topology.parts(set);
  }
#endif
  return std::nullopt;
}

MachineParts machine_parts() {
  std::optional<MachineParts> parts = parts_by_hwloc();
  if (parts && !parts->nodes.empty()) return *std::move(parts);
  MachineParts one;
  one.nodes.push_back({.hardware_threads = threads_by_affinity()});
  one.hardware_threads = static_cast<int>(one.nodes[0].hardware_threads.size());
  return one;
}

Cores usable_cores() {
  const std::optional<Cores> by_hwloc = cores_by_hwloc();
  Cores cores = by_hwloc ? *by_hwloc : cores_by_affinity();
  if (const auto quota = processor_quota("/sys/fs/cgroup", content("/proc/self/cgroup"))) {
    const int most = std::max(1, static_cast<int>(std::ceil(*quota)));
    cores.count = std::min(cores.count, most);
    cores.of_machine = std::min(cores.of_machine, most);
  }
  return cores;
}

}  // namespace trimtab
