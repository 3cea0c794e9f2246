// SPDX-License-Identifier: Apache-2.0
// The memory that a run takes, rank by rank: what it has taken, or what --dry-run foretells.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trimtab/communicator.h"

namespace trimtab::cli {

struct RankMemory {
  size_t weights = 0;        // the packed weights of its process, without experts that may move
  size_t own_weights = 0;    // those of them that this rank needs
  size_t expert_slots = 0;   // experts that may move
  size_t expert_spares = 0;  // places for experts that arrive
  size_t workspace = 0;      // of the steps
  size_t kv = 0;             // keys and values of its sequences, at most
  size_t logits = 0;

  // Without the weights.
  size_t rest() const { return expert_slots + expert_spares + workspace + kv + logits; }
};

struct RunMemory {
  std::vector<RankMemory> ranks;
  bool shares_weights = true;   // ranks are threads, and have the weights of their process together
  bool weights_mapped = false;  // the weights are pages of a packed model's files

  // Of all ranks together.
  size_t total() const;
};

// Brings the memory of ranks that are processes together, each of which has filled in its own.
// Collective.
void gather(Communicator& comm, RunMemory& memory);

// A table of the ranks in MB, and the total.
std::string in_text(const RunMemory& memory);

}  // namespace trimtab::cli
