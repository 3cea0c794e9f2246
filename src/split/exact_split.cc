// SPDX-License-Identifier: Apache-2.0
#include "split/exact_split.h"

#include <algorithm>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

class ExactSplit {
 public:
  ExactSplit(const SplitTable& table, std::span<const int32_t> counts, Workspace& workspace,
             std::span<int32_t> shares)
      : table_(table),
        counts_(counts, table.num_experts),
        shares_(shares, table.num_slots),
        total_(workspace.take<int64_t>(table.num_experts)),
        shared_(workspace.take<int64_t>(table.shared_expert.size())),
        fixed_(workspace.take<int64_t>(table.num_ranks)),
        node_(workspace.take<int64_t>(table.hub_node.size())),
        own_(workspace.take<int64_t>(table.arc_slot.size())),
        flow_(workspace.take<int64_t>(table.arc_slot.size())),
        left_(workspace.take<int32_t>(cells(table.shared_expert.size(), table.num_ranks)),
              table.num_ranks) {}

  void run(Workspace& workspace) {
    sum_experts();
    place_unshared();
    gather_shared();
    for (int64_t s = 0; s < left_.rows(); ++s) sum_shared(s);
    peak_flow(table_, {.shared = shared_, .fixed = fixed_, .node = node_, .own = own_}, workspace,
              flow_);
    for (int64_t s = 0; s < left_.rows(); ++s) fill(s);
  }

 private:
  int64_t first_hub(int64_t shared) const { return table_.first_hub[shared]; }
  int64_t begin_arc(int64_t shared) const { return table_.first_arc[first_hub(shared)]; }
  int64_t end_arc(int64_t shared) const { return begin_arc(shared + 1); }

  void sum_experts() {
    std::fill(total_.begin(), total_.end(), 0);
    for (int64_t source = 0; source < counts_.rows(); ++source) {
      const std::span<const int32_t> row = counts_[source];
      for (size_t e = 0; e < row.size(); ++e) total_[e] += row[e];
    }
  }

  // Experts on one rank leave no choice.
  void place_unshared() {
    std::fill(fixed_.begin(), fixed_.end(), 0);
    for (const SplitTable::Sole& sole : table_.soles) {
      fixed_[table_.rank_of_slot[sole.slot]] += total_[sole.expert];
    }
    for (int64_t source = 0; source < counts_.rows(); ++source) {
      for (const SplitTable::Sole& sole : table_.soles) {
        shares_(source, sole.slot) = counts_(source, sole.expert);
      }
    }
  }

  // Counts of shared experts, by expert. Sources go in blocks, so that what is written stays in
  // cache between them.
  void gather_shared() {
    constexpr int64_t kBlock = 16;  // a cache line of counts
    for (int64_t block = 0; block < counts_.rows(); block += kBlock) {
      const int64_t end = std::min(block + kBlock, counts_.rows());
      for (int64_t s = 0; s < left_.rows(); ++s) {
        const int32_t expert = table_.shared_expert[s];
        for (int64_t source = block; source < end; ++source) {
          left_(s, source) = counts_(source, expert);
        }
      }
    }
  }

  void sum_shared(int64_t shared) {
    shared_[shared] = total_[table_.shared_expert[shared]];
    const std::span<const int32_t> left = left_[shared];
    for (int64_t h = first_hub(shared); h < first_hub(shared + 1); ++h) {
      node_[h] = 0;
      for (const int32_t source : sources_of(h)) node_[h] += left[source];
    }
    for (int64_t a = begin_arc(shared); a < end_arc(shared); ++a) {
      own_[a] = left[table_.arc_rank[a]];
    }
  }

  // The ranks on a hub's node.
  std::span<const int32_t> sources_of(int64_t hub) const {
    const int32_t node = table_.hub_node[hub];
    const int32_t first = table_.first_node_rank[node];
    return std::span(table_.node_rank).subspan(first, table_.first_node_rank[node + 1] - first);
  }

  void fill(int64_t shared) {
    const std::span<int32_t> left = left_[shared];
    for (int64_t a = begin_arc(shared); a < end_arc(shared); ++a) {
      give(table_.arc_rank[a], a, left);
    }
    for (int64_t h = first_hub(shared); h < first_hub(shared + 1); ++h) {
      give_in_order(sources_of(h), table_.first_arc[h], table_.first_arc[h + 1], left);
    }
    give_in_order(table_.node_rank, begin_arc(shared), end_arc(shared), left);
  }

  // Gives an arc's slot what it wants and the source has.
  void give(int32_t source, int64_t arc, std::span<int32_t> left) {
    const auto tokens = static_cast<int32_t>(std::min<int64_t>(left[source], flow_[arc]));
    shares_(source, table_.arc_slot[arc]) += tokens;
    left[source] -= tokens;
    flow_[arc] -= tokens;
  }

  // Sources and arcs meet in order, so each is passed once.
  void give_in_order(std::span<const int32_t> sources, int64_t arc, int64_t end,
                     std::span<int32_t> left) {
    for (const int32_t source : sources) {
      while (arc < end && left[source] > 0) {
        give(source, arc, left);
        if (flow_[arc] == 0) ++arc;
      }
    }
  }

  const SplitTable& table_;
  const Table<const int32_t> counts_;  // [ranks, experts]
  const Table<int32_t> shares_;        // [ranks, slots]
  std::span<int64_t> total_;           // [experts]
  std::span<int64_t> shared_, fixed_, node_, own_,
      flow_;             // as in BatchTotals; flow_ counts down while it is filled
  Table<int32_t> left_;  // [shared experts, ranks] tokens that have no slot yet
};

}  // namespace

void exact_split(const SplitTable& table, std::span<const int32_t> counts, Workspace& workspace,
                 std::span<int32_t> shares) {
  const size_t mark = workspace.mark();
  const size_t bytes = exact_split_bytes(SplitSizes(table));
  if (workspace.capacity() - mark < bytes) {
    throw InvalidArgument(cat("split needs ", bytes, " bytes of workspace, ",
                              workspace.capacity() - mark, " left of ", workspace.capacity()));
  }
  ExactSplit(table, counts, workspace, shares).run(workspace);
  workspace.release(mark);
}

size_t exact_split_bytes(const SplitSizes& sizes) {
  return Workspace::padded(sizes.experts * 8) + Workspace::padded(sizes.shared * 8) +
         Workspace::padded(sizes.ranks * 8) + Workspace::padded(sizes.hubs * 8) +
         2 * Workspace::padded(sizes.arcs * 8) + Workspace::padded(sizes.shared * sizes.ranks * 4) +
         peak_flow_bytes(sizes);
}

}  // namespace trimtab
