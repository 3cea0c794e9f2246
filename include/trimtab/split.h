// SPDX-License-Identifier: Apache-2.0
// Sharing one batch's tokens out over the replicas of their experts. Given how many tokens every
// source rank has for every logical expert, a rule decides how many of them go to each replica. The
// functions are pure: every rank computes the same shares from the same counts, so nobody has to
// tell anybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "trimtab/cost_model.h"
#include "trimtab/placement.h"
#include "trimtab/workspace.h"

namespace trimtab {

enum class SplitRule {
  kStatic,      // a source rank sends all tokens of an expert to one replica, as Placement::log2phy
                // says
  kRoundRobin,  // the replicas of an expert get equally many tokens to within one, whoever sends
                // them
  kSplit,  // the peak rank load is as low as whole tokens allow; then most tokens stay on their
           // rank, then node
  kTime,   // the largest rank time by a cost model is as low as a search finds: few replicas get
           // tokens while reading weights costs most, all when arithmetic does
};

// "static", "round_robin", "split", "time". Throws InvalidArgument listing the names.
SplitRule parse_split_rule(std::string_view name);
std::string_view name(SplitRule rule);

// The replicas of one layer, laid out for the rules. Built when a placement is committed, read-only
// afterwards: any number of threads may use it. Arrays in [] are indexed as named.
struct SplitTable {
  // node_of_rank: [ranks], any ids >= 0; empty: all ranks on one node. Throws InvalidArgument when
  // the layer is not the placement's or the sizes differ.
  SplitTable(const Placement& placement, int layer, std::span<const int32_t> node_of_rank = {});

  int num_ranks, num_experts, num_slots;
  uint64_t fingerprint;  // a hash of the replicas, ranks and nodes, by which ranks notice that
                         // their tables differ

  std::vector<int32_t> rank_of_slot;   // [slots]
  std::vector<int32_t> first_replica;  // [experts + 1] into replica_slot
  std::vector<int32_t> replica_slot;   // [slots], by expert, then ascending
  std::vector<int32_t> static_slot;    // [ranks, experts]

  // Experts that live on one rank only, with their first slot there.
  struct Sole {
    int32_t expert, slot;
  };
  std::vector<Sole> soles;
  // Experts that live on several ranks, and the graph they span: expert -> hubs (the nodes it is
  // on) -> arcs (the ranks it is on, by the first of its slots there).
  std::vector<int32_t> shared_expert;    // [shared]
  std::vector<int32_t> first_hub;        // [shared + 1]
  std::vector<int32_t> hub_expert;       // [hubs], index into shared_expert
  std::vector<int32_t> hub_node;         // [hubs]
  std::vector<int32_t> first_arc;        // [hubs + 1]
  std::vector<int32_t> arc_hub;          // [arcs]
  std::vector<int32_t> arc_rank;         // [arcs]
  std::vector<int32_t> arc_slot;         // [arcs]
  std::vector<int32_t> first_rank_arc;   // [ranks + 1] into rank_arc
  std::vector<int32_t> rank_arc;         // [arcs], by rank, then ascending
  std::vector<int32_t> node_of_rank;     // [ranks], nodes numbered 0, 1, ... by their first rank
  std::vector<int32_t> first_node_rank;  // [nodes + 1] into node_rank
  std::vector<int32_t> node_rank;        // [ranks], by node, then ascending
};

// What split_tokens takes from its workspace at most, and gives back before it returns.
size_t split_workspace_bytes(const SplitTable& table);
// The most that it takes for any placement of these sizes: what to reserve where placements change.
size_t split_workspace_bytes(int num_ranks, int num_experts, int num_slots);

// counts: [ranks, experts], tokens of each source rank for each logical expert, >= 0.
// shares: [ranks, slots], tokens of each source rank that go to each slot; over the slots of an
// expert they sum to the expert's count. Does not allocate. Throws InvalidArgument when sizes
// differ, a count is negative (rank and expert are named), or the workspace is too small, and as
// check_cost(). cost: for kTime, else it may be null.
//
// kSplit is exact: with whole tokens no shares have a lower peak; among those none keeps more
// tokens on the rank they come from, and among those none keeps more on the node. A second replica
// of an expert on one rank gets none. It solves a min-cost flow whose size is that of the shared
// experts; the cost of a path is how many tokens leave their rank and node.
//
// kTime aims at the least of the largest of split_rank_times() (time_flow.h says how, and
// docs/live.md how near it comes). A replica that gets tokens gets those of its rank first, then
// those of its node. With a proportional cost model it is kSplit.
void split_tokens(SplitRule rule, const SplitTable& table, std::span<const int32_t> counts,
                  Workspace& workspace, std::span<int32_t> shares, const CostModel* cost = nullptr);

// Throws InvalidArgument when the rule needs a cost model and has none, or when the model has
// speeds of another number of ranks.
void check_cost(SplitRule rule, const SplitTable& table, const CostModel* cost);

// Turns the logical ids of one source rank's tokens into slots, in order: the first shares[slot]
// tokens of an expert go to its first slot, and so on. ids: any length, changed in place; -1 stays.
// share_row: [slots], that rank's row of shares, used up as tokens are assigned. Throws
// InvalidArgument when an id is out of range or has no share left.
void assign_slots(const SplitTable& table, std::span<int32_t> share_row, std::span<int32_t> ids);

// Tokens that each rank receives under shares: [ranks].
void split_rank_loads(const SplitTable& table, std::span<const int32_t> shares,
                      std::span<int64_t> loads);

// The time that each rank takes for them by the cost model, in picoseconds: [ranks]. The sum over
// its slots of the time for their rows, at the rank's speed; the largest of them is what the rule
// kTime makes low, and their PAR is the PAR in time.
void split_rank_times(const SplitTable& table, std::span<const int32_t> shares,
                      const CostModel& cost, std::span<int64_t> times);

}  // namespace trimtab
