// SPDX-License-Identifier: Apache-2.0
// The parallel layout of a model says which ranks have the same tokens and which of them hold parts
// of the same experts. It is one value; the groups of ranks and the cut of the tokens follow from
// it.
//
// Ranks are numbered as engines number them: tensor-parallel ranks stand side by side, then come
// the context-parallel ones, then the data-parallel ones: rank = (dp_rank * pcp + pcp_rank) * tp +
// tp_rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trimtab/communicator.h"
#include "trimtab/dispatcher.h"
#include "trimtab/placement.h"

namespace trimtab {

struct ParallelLayout {
  // The ranks of a tensor-parallel group. They have the same tokens.
  int tp = 1;
  // Groups that have sequences of their own.
  int dp = 1;
  // Whole experts, spread over all ranks. If not, each rank holds a part of every expert: some
  // columns of gate and up and the same rows of down. The parts of a tensor-parallel group make up
  // all experts, and their outputs are summed over it.
  bool ep = true;
  // Prefill context parallelism: so many tensor-parallel groups have the same sequences, and each
  // takes a slice of their tokens through the experts.
  int pcp = 1;
  // Sequence parallelism, which counts with ep only: each rank of a tensor-parallel group takes a
  // slice of the tokens through the MoE layer, and the outputs are gathered. If not, every rank
  // takes all tokens, works on its own experts' picks, and the outputs are summed over the group;
  // that works for one group only.
  bool sp = true;

  bool operator==(const ParallelLayout&) const = default;

  int ranks() const { return tp * dp * pcp; }
  int tp_rank(int rank) const { return rank % tp; }
  int dp_rank(int rank) const { return rank / (tp * pcp); }
  // The ranks that have the same sequences, whose first one speaks for them.
  int ranks_of_sequences() const { return tp * pcp; }
  bool leads(int rank) const { return rank % (tp * pcp) == 0; }
  // The parts that each expert is cut into.
  int expert_parts() const { return ep ? 1 : tp; }
  // Does the layer sum parts of its output over ranks that have the same tokens?
  bool sums_parts() const { return !ep || (!sp && tp > 1); }
  // The ranks that share a sequence's tokens out among them before the MoE layer, and the number of
  // the slice that a rank takes.
  int token_slices() const { return ep ? (sp ? tp * pcp : 1) : pcp; }
  int slice_of(int rank) const {
    return token_slices() == 1 ? 0 : (ep ? rank : rank / tp) % token_slices();
  }
};

// Each rank has its own tokens, and whole experts are spread over all ranks.
ParallelLayout data_parallel(int ranks);

// "tp 2 x dp 2, whole experts", ...
std::string name(const ParallelLayout& layout);

// Throws InvalidArgument, with the values, for sizes below 1, a number of ranks that is not
// `ranks`, and layouts whose parts can't be summed.
void check_layout(const ParallelLayout& layout, int ranks);

// Where the experts of each layer are, to begin with: in order over all ranks, or, where they are
// in parts, all of them on every rank.
Placement placement_of_layout(const ParallelLayout& layout, int num_layers, int num_experts);
// Throws InvalidArgument for a placement that ranks which sum parts can't have: another one than
// placement_of_layout() where experts are in parts; replicas where each rank has all tokens, as
// every rank would send a token to the replica that is nearest to it.
void check_placement(const ParallelLayout& layout, const Placement& placement);

// One rank's groups. Where a group is comm itself, or this rank alone, it is not made.
struct LayoutGroups {
  // Null: the experts are spread over all ranks. Else the ranks that hold parts of the same
  // experts.
  std::unique_ptr<Communicator> experts;
  // Null: no tokens are cut. Else the ranks that take slices of the same tokens, in order.
  std::unique_ptr<Communicator> tokens;
};
// Collective over comm. Throws as check_layout().
LayoutGroups make_layout_groups(const ParallelLayout& layout, Communicator& comm);

// Slice `part` of `count` tokens in `parts`, as even as they go: the first ones are one longer, and
// some may be empty.
struct TokenSlice {
  int64_t first = 0, count = 0;
};
TokenSlice token_slice(int64_t count, int parts, int part);

// For ranks that all have the same tokens, `grouped` with the sum of their outputs: each rank works
// on the picks that are its own experts', or on its parts of all experts, and every rank gets the
// sum, with the same bits. Takes Exchange::add_part(). The sum over ranks changes the order of
// additions as all_gather does. Collectives only, over the lane's group. With a rank's number of
// tokens unlike that of others every rank gets an InvalidArgument.
std::unique_ptr<Dispatcher> make_summed_dispatcher(const DispatchShape& shape, int rank);

}  // namespace trimtab
