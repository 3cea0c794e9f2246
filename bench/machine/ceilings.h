// SPDX-License-Identifier: Apache-2.0
// What this machine can reach at most, now: clocks and neighbours change it, so it is measured anew
// before every call that is compared with it.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/machine/isa_loops.h"
#include "trimtab/team.h"
#include "trimtab/tensor.h"

namespace trimtab::bench {

// The loops of the instruction sets that the expert kernels can use on this CPU, best last; the
// first is always scalar. An instruction set without loops of its own is left out.
std::vector<const IsaLoops*> available_loops();

// The loops of the instruction set that the kernels use: the best, or the one that TRIMTAB_ISA
// names, or the nearest below that has loops. Throws InvalidArgument with the choices.
const IsaLoops& chosen_loops();

// The loop for a kind of dot product; where the instruction set has none for it, the one for f32,
// to which the elements would be widened.
const DotLoop& dot_loop(const IsaLoops& loops, DotKind kind);

// Bytes of memory that are free now; the largest number where the system does not say.
size_t free_memory();

// Bytes that are no longer in any cache once as many have been read: `wanted`, or half of the
// memory that is free now if that is less.
size_t cold_bytes(size_t wanted);

// So many bytes, in pieces that a stream is read in, which the team touches for the first time.
Buffer touched_memory(size_t bytes, Team& team);

class Ceilings {
 public:
  // memory: what the stream is read from, in turn. The team measures together: ceilings are of all
  // its threads.
  Ceilings(const IsaLoops& loops, Team& team, size_t memory);
  // The same with memory of touched_memory().
  Ceilings(const IsaLoops& loops, Team& team, Buffer memory);
  double peak(DotKind kind);  // operations per second, about 1 ms
  double stream();            // bytes per second from cold memory in huge pages, a few ms
  const IsaLoops& loops() const { return loops_; }
  const Team& team() const { return team_; }

 private:
  const IsaLoops& loops_;
  Team& team_;
  Buffer memory_;
  size_t next_ = 0;  // where the next stream begins
};

}  // namespace trimtab::bench
