// SPDX-License-Identifier: Apache-2.0
// Runs work on chosen memory nodes.
#pragma once

#include <functional>
#include <span>

#include "base/cores.h"

namespace trimtab {

// Where memory is that is touched for the first time.
enum class FirstTouch {
  kLocal,       // on the node of the thread that touches it
  kInterleaved  // pages in turn on all of the nodes
};

// Runs the body in a thread that keeps to these hardware threads, as do the threads that it starts.
// Returns when it is done; its exception is thrown here. Throws Error where the system refuses.
void run_on_nodes(std::span<const MemoryNode> nodes, FirstTouch touch,
                  const std::function<void()>& body);

// How much of a memory's pages is on this node, of those that are there: 0 to 1; less than 0 where
// the system does not say.
double share_on_node(std::span<const std::byte> memory, int node);

}  // namespace trimtab
