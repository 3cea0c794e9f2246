// SPDX-License-Identifier: Apache-2.0
#include "split/exact_split.h"

#include <algorithm>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

class ExactSplit {
 public:
  ExactSplit(const SplitTable& table, std::span<const int32_t> counts, Workspace& workspace,
             std::span<int32_t> shares)
      : table_(table),
        counts_(counts),
        shares_(shares),
        experts_(table.num_experts),
        slots_(table.num_slots),
        total_(workspace.take<int64_t>(experts_)),
        shared_(workspace.take<int64_t>(table.shared_expert.size())),
        fixed_(workspace.take<int64_t>(table.num_ranks)),
        node_(workspace.take<int64_t>(table.hub_node.size())),
        own_(workspace.take<int64_t>(table.arc_slot.size())),
        flow_(workspace.take<int64_t>(table.arc_slot.size())),
        left_(workspace.take<int32_t>(table.shared_expert.size() *
                                      static_cast<size_t>(table.num_ranks))) {}

  void run(Workspace& workspace) {
    sum_experts();
    place_unshared();
    gather_shared();
    for (size_t s = 0; s < shared_.size(); ++s) sum_shared(s);
    peak_flow(table_, {.shared = shared_, .fixed = fixed_, .node = node_, .own = own_}, workspace,
              flow_);
    for (size_t s = 0; s < shared_.size(); ++s) fill(s);
  }

 private:
  size_t ranks() const { return fixed_.size(); }
  size_t first_hub(size_t shared) const { return static_cast<size_t>(table_.first_hub[shared]); }
  size_t begin_arc(size_t shared) const {
    return static_cast<size_t>(table_.first_arc[table_.first_hub[shared]]);
  }
  size_t end_arc(size_t shared) const { return begin_arc(shared + 1); }

  void sum_experts() {
    std::fill(total_.begin(), total_.end(), 0);
    for (size_t row = 0; row < counts_.size(); row += experts_) {
      for (size_t e = 0; e < experts_; ++e) total_[e] += counts_[row + e];
    }
  }

  // Experts on one rank leave no choice.
  void place_unshared() {
    std::fill(fixed_.begin(), fixed_.end(), 0);
    for (const SplitTable::Sole& sole : table_.soles) {
      fixed_[static_cast<size_t>(table_.rank_of_slot[sole.slot])] += total_[sole.expert];
    }
    for (size_t source = 0; source < fixed_.size(); ++source) {
      for (const SplitTable::Sole& sole : table_.soles) {
        shares_[source * slots_ + static_cast<size_t>(sole.slot)] =
            counts_[source * experts_ + static_cast<size_t>(sole.expert)];
      }
    }
  }

  // Counts of shared experts, by expert. Sources go in blocks, so that what is written stays in
  // cache between them.
  void gather_shared() {
    constexpr size_t kBlock = 16;  // a cache line of counts
    for (size_t block = 0; block < ranks(); block += kBlock) {
      for (size_t s = 0; s < shared_.size(); ++s) {
        const auto expert = static_cast<size_t>(table_.shared_expert[s]);
        for (size_t source = block; source < std::min(block + kBlock, ranks()); ++source) {
          left_[s * ranks() + source] = counts_[source * experts_ + expert];
        }
      }
    }
  }

  void sum_shared(size_t shared) {
    shared_[shared] = total_[table_.shared_expert[shared]];
    const std::span<const int32_t> left = left_.subspan(shared * ranks(), ranks());
    for (size_t h = first_hub(shared); h < first_hub(shared + 1); ++h) {
      node_[h] = 0;
      for (const int32_t source : sources_of(h)) node_[h] += left[source];
    }
    for (size_t a = begin_arc(shared); a < end_arc(shared); ++a) own_[a] = left[table_.arc_rank[a]];
  }

  // The ranks on a hub's node.
  std::span<const int32_t> sources_of(size_t hub) const {
    const auto node = static_cast<size_t>(table_.hub_node[hub]);
    const auto first = static_cast<size_t>(table_.first_node_rank[node]);
    return std::span(table_.node_rank)
        .subspan(first, static_cast<size_t>(table_.first_node_rank[node + 1]) - first);
  }

  void fill(size_t shared) {
    const std::span<int32_t> left = left_.subspan(shared * ranks(), ranks());
    for (size_t a = begin_arc(shared); a < end_arc(shared); ++a) {
      give(table_.arc_rank[a], a, left);
    }
    for (size_t h = first_hub(shared); h < first_hub(shared + 1); ++h) {
      give_in_order(sources_of(h), table_.first_arc[h], table_.first_arc[h + 1], left);
    }
    give_in_order(table_.node_rank, begin_arc(shared), end_arc(shared), left);
  }

  // Gives an arc's slot what it wants and the source has.
  void give(size_t source, size_t arc, std::span<int32_t> left) {
    const auto tokens = static_cast<int32_t>(std::min<int64_t>(left[source], flow_[arc]));
    shares_[source * slots_ + static_cast<size_t>(table_.arc_slot[arc])] += tokens;
    left[source] -= tokens;
    flow_[arc] -= tokens;
  }

  // Sources and arcs meet in order, so each is passed once.
  void give_in_order(std::span<const int32_t> sources, size_t arc, size_t end,
                     std::span<int32_t> left) {
    for (const int32_t source : sources) {
      while (arc < end && left[source] > 0) {
        give(source, arc, left);
        if (flow_[arc] == 0) ++arc;
      }
    }
  }

  const SplitTable& table_;
  std::span<const int32_t> counts_;
  std::span<int32_t> shares_;
  const size_t experts_, slots_;
  std::span<int64_t> total_;  // [experts]
  std::span<int64_t> shared_, fixed_, node_, own_,
      flow_;                 // as in BatchTotals; flow_ counts down while it is filled
  std::span<int32_t> left_;  // [shared experts, ranks] tokens that have no slot yet
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
