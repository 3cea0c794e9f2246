// SPDX-License-Identifier: Apache-2.0
#include "split/exact_split.h"

#include <algorithm>
#include <numeric>

#include "base/cat.h"
#include "split/time_flow.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

class ExactSplit {
 public:
  ExactSplit(const SplitTable& table, std::span<const int32_t> counts, const CostModel* cost,
             Workspace& workspace, std::span<int32_t> shares)
      : table_(table),
        cost_(cost),
        counts_(counts, table.num_experts),
        shares_(shares, table.num_slots),
        total_(workspace.take<int64_t>(table.num_experts)),
        shared_(workspace.take<int64_t>(table.shared_expert.size())),
        fixed_(workspace.take<int64_t>(table.num_ranks)),
        node_(workspace.take<int64_t>(table.hub_node.size())),
        own_(workspace.take<int64_t>(table.arc_slot.size())),
        flow_(workspace.take<int64_t>(table.arc_slot.size())),
        whole_(workspace.take<SplitTable::Sole>(table.shared_expert.size())),
        divided_(workspace.take<int32_t>(table.shared_expert.size())),
        left_(workspace.take<int32_t>(cells(table.shared_expert.size(), table.num_ranks)),
              table.num_ranks) {}

  void run(Workspace& workspace) {
    sum_experts();
    sum_soles();
    // Where tokens come from matters to peak_flow, and to times with a wire.
    const bool early = cost_ == nullptr || cost_->wire_picoseconds() > 0;
    if (early) {
      std::iota(divided_.begin(), divided_.end(), 0);
      gather(divided_);
      for (int64_t s = 0; s < left_.rows(); ++s) sum_sources(s);
    }
    const BatchTotals batch = {.shared = shared_, .fixed = fixed_, .node = node_, .own = own_};
    if (cost_ == nullptr) {
      peak_flow(table_, batch, workspace, flow_);
    } else {
      time_flow(table_, batch, *cost_, workspace, flow_);
    }
    tell_whole_from_divided();
    place(table_.soles);
    place(whole_);
    if (!early) gather(divided_);
    for (const int32_t s : divided_) fill(s);
  }

 private:
  int64_t first_hub(int64_t shared) const { return table_.first_hub[shared]; }
  int64_t begin_arc(int64_t shared) const { return table_.first_arc[first_hub(shared)]; }
  int64_t end_arc(int64_t shared) const { return begin_arc(shared + 1); }

  void sum_experts() {
    std::fill(total_.begin(), total_.end(), 0);
    // Two counts fit in 32 bits without a sign, which takes half of the widening.
    int64_t source = 0;
    for (; source + 1 < counts_.rows(); source += 2) {
      const std::span<const int32_t> one = counts_[source], other = counts_[source + 1];
      for (size_t e = 0; e < one.size(); ++e)
        total_[e] += static_cast<uint32_t>(one[e]) + static_cast<uint32_t>(other[e]);
    }
    if (source < counts_.rows()) {
      const std::span<const int32_t> row = counts_[source];
      for (size_t e = 0; e < row.size(); ++e) total_[e] += row[e];
    }
    for (int64_t s = 0; s < left_.rows(); ++s) shared_[s] = total_[table_.shared_expert[s]];
  }

  // Experts on one rank leave no choice.
  void sum_soles() {
    std::fill(fixed_.begin(), fixed_.end(), 0);
    for (const SplitTable::Sole& sole : table_.soles) {
      const int32_t rank = table_.rank_of_slot[sole.slot];
      fixed_[rank] += cost_of_sole(rank, sole.expert);
    }
  }
  int64_t cost_of_sole(int32_t rank, int32_t expert) const {
    const int64_t tokens = total_[expert];
    if (cost_ == nullptr) return tokens;
    return cost_->time(tokens) + cost_->wire_picoseconds() * (tokens - counts_(rank, expert));
  }

  // Experts all of whose tokens go to one slot: source by source, as the shares stand in memory.
  void place(std::span<const SplitTable::Sole> experts) {
    for (int64_t source = 0; source < counts_.rows(); ++source) {
      const std::span<int32_t> row = shares_[source];
      const std::span<const int32_t> counts = counts_[source];
      for (const SplitTable::Sole& sole : experts) row[sole.slot] = counts[sole.expert];
    }
  }

  // Which shared experts have one replica that gets all tokens, and which are divided.
  void tell_whole_from_divided() {
    int64_t whole = 0, divided = 0;
    for (int32_t s = 0; s < left_.rows(); ++s) {
      int64_t all = begin_arc(s);
      while (all < end_arc(s) && flow_[all] != shared_[s]) ++all;
      if (all < end_arc(s)) {
        whole_[whole++] = {table_.shared_expert[s], table_.arc_slot[all]};
      } else {
        divided_[divided++] = s;
      }
    }
    whole_ = whole_.first(whole);
    divided_ = divided_.first(divided);
  }

  // The counts of some shared experts, by expert. Sources go in blocks, so that what is written
  // stays in cache between them.
  void gather(std::span<const int32_t> some) {
    constexpr int64_t kBlock = 16;  // a cache line of counts
    for (int64_t block = 0; block < counts_.rows(); block += kBlock) {
      const int64_t end = std::min(block + kBlock, counts_.rows());
      for (const int32_t s : some) {
        const int32_t expert = table_.shared_expert[s];
        for (int64_t source = block; source < end; ++source) {
          left_(s, source) = counts_(source, expert);
        }
      }
    }
  }

  void sum_sources(int64_t shared) {
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
    while (arc < end && flow_[arc] == 0) ++arc;
    for (const int32_t source : sources) {
      if (arc == end) return;
      while (arc < end && left[source] > 0) {
        give(source, arc, left);
        if (flow_[arc] == 0) ++arc;
      }
    }
  }

  const SplitTable& table_;
  const CostModel* cost_;              // null: the level is in tokens
  const Table<const int32_t> counts_;  // [ranks, experts]
  const Table<int32_t> shares_;        // [ranks, slots]
  std::span<int64_t> total_;           // [experts]
  std::span<int64_t> shared_, fixed_, node_, own_,
      flow_;                           // as in BatchTotals; flow_ counts down while it is filled
  std::span<SplitTable::Sole> whole_;  // shared experts with the slot that gets all their tokens
  std::span<int32_t> divided_;         // the other shared experts
  Table<int32_t> left_;                // [shared experts, ranks] tokens that have no slot yet
};

}  // namespace

void exact_split(const SplitTable& table, std::span<const int32_t> counts, const CostModel* cost,
                 Workspace& workspace, std::span<int32_t> shares) {
  const size_t mark = workspace.mark();
  const size_t bytes = exact_split_bytes(SplitSizes(table));
  if (workspace.capacity() - mark < bytes) {
    throw InvalidArgument(cat("split needs ", bytes, " bytes of workspace, ",
                              workspace.capacity() - mark, " left of ", workspace.capacity()));
  }
  const bool in_tokens = cost == nullptr || cost->is_proportional();
  ExactSplit(table, counts, in_tokens ? nullptr : cost, workspace, shares).run(workspace);
  workspace.release(mark);
}

size_t exact_split_bytes(const SplitSizes& sizes) {
  return Workspace::padded(sizes.experts * 8) + Workspace::padded(sizes.shared * 8) +
         Workspace::padded(sizes.ranks * 8) + Workspace::padded(sizes.hubs * 8) +
         2 * Workspace::padded(sizes.arcs * 8) + Workspace::padded(sizes.shared * sizes.ranks * 4) +
         Workspace::padded(sizes.shared * sizeof(SplitTable::Sole)) +
         Workspace::padded(sizes.shared * 4) +
         std::max(peak_flow_bytes(sizes), time_flow_bytes(sizes));
}

}  // namespace trimtab
