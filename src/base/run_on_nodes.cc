// SPDX-License-Identifier: Apache-2.0
#include "base/run_on_nodes.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Of <linux/mempolicy.h>, which not every system has.
constexpr int kInterleave = 3;

Error refused(const char* what) {
  return Error(cat("can't ", what, ": ", std::strerror(errno)));
}

void keep_to(std::span<const MemoryNode> nodes) {
  int most = 0;
  for (const MemoryNode& node : nodes)
    most = std::max(most, std::ranges::max(node.hardware_threads));
  cpu_set_t* const set = CPU_ALLOC(most + 1);
  if (set == nullptr) throw std::bad_alloc();
  const size_t bytes = CPU_ALLOC_SIZE(most + 1);
  CPU_ZERO_S(bytes, set);
  for (const MemoryNode& node : nodes) {
    for (const int thread : node.hardware_threads) CPU_SET_S(thread, bytes, set);
  }
  const int failed = sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
  if (failed != 0) throw refused("keep a thread to the cores of a memory node");
}

void interleave(std::span<const MemoryNode> nodes) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  int most = 0;
  for (const MemoryNode& node : nodes) most = std::max(most, node.id);
  std::vector<unsigned long> mask(most / kBits + 1);
  for (const MemoryNode& node : nodes) mask[node.id / kBits] |= 1UL << node.id % kBits;
  // The kernel takes one bit less than it is told.
  if (syscall(SYS_set_mempolicy, kInterleave, mask.data(), mask.size() * kBits + 1) != 0)
    throw refused("spread memory over memory nodes");
}

}  // namespace

void run_on_nodes(std::span<const MemoryNode> nodes, FirstTouch touch,
                  const std::function<void()>& body) {
  std::exception_ptr error;
  std::thread thread([&] {
    try {
      keep_to(nodes);
      if (touch == FirstTouch::kInterleaved) interleave(nodes);
      body();
    } catch (...) {
      error = std::current_exception();
    }
  });
  thread.join();
  if (error) std::rethrow_exception(error);
}

double share_on_node(std::span<const std::byte> memory, int node) {
  // A page of each huge page; those that a huge page holds are together.
  constexpr size_t kStride = size_t{2} << 20;
  std::vector<void*> pages;
  for (size_t at = 0; at < memory.size(); at += kStride)
    pages.push_back(const_cast<std::byte*>(memory.data() + at));
  std::vector<int> nodes(pages.size(), -1);
  if (pages.empty() ||
      syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) {
    return -1;
  }
  const auto there = std::ranges::count_if(nodes, [](int n) { return n >= 0; });
  if (there == 0) return -1;
  return static_cast<double>(std::ranges::count(nodes, node)) / static_cast<double>(there);
}

}  // namespace trimtab
