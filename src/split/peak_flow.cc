// SPDX-License-Identifier: Apache-2.0
#include "split/peak_flow.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace trimtab {
namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// What a token pays per hop. A shortest path is simple, so it has fewer than kOwnRank hubs for any
// table that fits in memory, and no number of tokens kept on their node outweighs one kept on its
// rank.
constexpr int64_t kOwnRank = int64_t{1} << 32;
constexpr int64_t kOwnNode = 1;

// A residual step: what it costs per token and how many tokens it carries at that cost.
struct Step {
  int64_t cost;
  int64_t room;
};

// Vertices: shared experts, then hubs, then ranks.
class Flow {
 public:
  Flow(const SplitTable& table, const BatchTotals& batch, Workspace& workspace,
       std::span<int64_t> arc_flow)
      : table_(table),
        batch_(batch),
        num_experts_(std::ssize(table.shared_expert)),
        num_hubs_(std::ssize(table.hub_expert)),
        num_vertices_(num_experts_ + num_hubs_ + table.num_ranks),
        arc_flow_(arc_flow),
        hub_flow_(workspace.take<int64_t>(num_hubs_)),
        supply_(workspace.take<int64_t>(num_experts_)),
        room_(workspace.take<int64_t>(table.num_ranks)),
        distance_(workspace.take<int64_t>(num_vertices_)),
        queue_(workspace.take<int32_t>(num_vertices_)),
        queued_(workspace.take<uint8_t>(num_vertices_)),
        visited_(workspace.take<uint8_t>(num_vertices_)) {}

  int64_t solve() {
    const int64_t peak = least_peak();
    start(peak);
    augment_all();
    return peak;
  }

  int64_t least_peak() {
    count_hops_ = true;
    const int64_t peak = lowered_peak();
    count_hops_ = false;
    return peak;
  }

 private:
  int64_t num_ranks() const { return table_.num_ranks; }
  int64_t hub_vertex(int64_t hub) const { return num_experts_ + hub; }
  int64_t rank_vertex(int64_t rank) const { return num_experts_ + num_hubs_ + rank; }

  int64_t lower_bound() const {
    const int64_t total = std::accumulate(batch_.shared.begin(), batch_.shared.end(), int64_t{0}) +
                          std::accumulate(batch_.fixed.begin(), batch_.fixed.end(), int64_t{0});
    return std::max((total + num_ranks() - 1) / num_ranks(),
                    *std::max_element(batch_.fixed.begin(), batch_.fixed.end()));
  }

  // From a level flow the peak is lowered, by more each time, until some tokens find no room.
  int64_t lowered_peak() {
    const int64_t least = lower_bound();
    int64_t peak = level(least);
    int64_t base = 0;  // what room_ is counted from
    for (int64_t step = 1; peak > least; step *= 2) {
      const int64_t lower = std::max(least, peak - step);
      raise(lower - base);
      if (!augment_all()) return raised_until_all_fit(lower, peak);
      peak = base = lower;
    }
    return peak;
  }

  // Some tokens have found no room below `peak`; all of them would below `most`.
  int64_t raised_until_all_fit(int64_t peak, int64_t most) {
    do {
      const int64_t higher = witnessed_peak();
      if (higher == most) return most;
      raise(higher - peak);
      peak = higher;
    } while (!augment_all());
    return peak;
  }

  // Gives each expert's tokens to its least loaded ranks, a few times over. Returns the peak; room_
  // counts from 0.
  int64_t level(int64_t least) {
    constexpr int kSweeps = 12;
    for (int64_t r = 0; r < num_ranks(); ++r) room_[r] = -batch_.fixed[r];
    std::fill(arc_flow_.begin(), arc_flow_.end(), 0);
    std::fill(hub_flow_.begin(), hub_flow_.end(), 0);
    std::fill(supply_.begin(), supply_.end(), 0);
    int64_t peak = 0;
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      for (int64_t e = 0; e < num_experts_; ++e) level_expert(e);
      peak = -*std::min_element(room_.begin(), room_.end());
      if (peak == least) break;
    }
    return peak;
  }

  void level_expert(int64_t expert) {
    const int64_t begin = first_arc(first_hub(expert));
    const int64_t end = first_arc(first_hub(expert + 1));
    int64_t wet = 0;                         // the number of ranks below the water line
    int64_t volume = batch_.shared[expert];  // what these ranks carry with this expert's tokens
    for (int64_t a = begin; a < end; ++a) {
      room_[arc_rank(a)] += arc_flow_[a];
      hub_flow_[table_.arc_hub[a]] -= arc_flow_[a];
      volume -= room_[arc_rank(a)];
      ++wet;
    }
    // Ranks above the mean fall dry, which lowers the line for the others.
    int64_t line = 0;
    for (int64_t before = 0; before != wet;) {
      before = wet;
      line = volume >= 0 ? volume / wet : 0;
      volume = batch_.shared[expert];
      wet = 0;
      for (int64_t a = begin; a < end; ++a) {
        if (-room_[arc_rank(a)] > line) continue;
        volume -= room_[arc_rank(a)];
        ++wet;
      }
    }
    int64_t rest = volume - line * wet;
    for (int64_t a = begin; a < end; ++a) {
      int64_t& room = room_[arc_rank(a)];
      arc_flow_[a] = -room > line ? 0 : line + room + (rest > 0 ? 1 : 0);
      if (-room <= line) --rest;
      room -= arc_flow_[a];
      hub_flow_[table_.arc_hub[a]] += arc_flow_[a];
    }
  }

  // Changes what ranks may carry. Where that is less than they do, tokens go back to their experts.
  void raise(int64_t change) {
    for (int64_t r = 0; r < num_ranks(); ++r) {
      room_[r] += change;
      for (int64_t i = table_.first_rank_arc[r]; room_[r] < 0; ++i) {
        const int64_t a = table_.rank_arc[i];
        const int64_t hub = table_.arc_hub[a];
        const int64_t back = std::min(arc_flow_[a], -room_[r]);
        arc_flow_[a] -= back;
        hub_flow_[hub] -= back;
        supply_[table_.hub_expert[hub]] += back;
        room_[r] += back;
      }
    }
  }

  // Own tokens stay while there is room: the cheapest flow of its size.
  void start(int64_t peak) {
    for (int64_t r = 0; r < num_ranks(); ++r) room_[r] = peak - batch_.fixed[r];
    for (int64_t h = 0; h < num_hubs_; ++h) {
      hub_flow_[h] = 0;
      for (int64_t a = first_arc(h); a < first_arc(h + 1); ++a) {
        arc_flow_[a] = std::min(batch_.own[a], room_[arc_rank(a)]);
        hub_flow_[h] += arc_flow_[a];
        room_[arc_rank(a)] -= arc_flow_[a];
      }
    }
    for (int64_t e = 0; e < num_experts_; ++e) {
      supply_[e] = batch_.shared[e];
      for (int64_t h = first_hub(e); h < first_hub(e + 1); ++h) supply_[e] -= hub_flow_[h];
    }
  }

  int64_t first_arc(int64_t hub) const { return table_.first_arc[hub]; }
  int64_t first_hub(int64_t expert) const { return table_.first_hub[expert]; }
  int64_t arc_rank(int64_t arc) const { return table_.arc_rank[arc]; }

  // Tokens up to `home` are at home and free of charge; the rest pay. A step forward from below
  // gains the price.
  Step forward(int64_t flow, int64_t home, int64_t price) const {
    if (count_hops_) return {1, kNoLimit};
    return flow < home ? Step{-price, home - flow} : Step{0, kNoLimit};
  }
  Step backward(int64_t flow, int64_t home, int64_t price) const {
    if (count_hops_) return {1, flow};
    return flow > home ? Step{0, flow - home} : Step{price, flow};
  }
  Step to_hub(int64_t h) const { return forward(hub_flow_[h], batch_.node[h], kOwnNode); }
  Step from_hub(int64_t h) const { return backward(hub_flow_[h], batch_.node[h], kOwnNode); }
  Step to_rank(int64_t a) const { return forward(arc_flow_[a], batch_.own[a], kOwnRank); }
  Step from_rank(int64_t a) const { return backward(arc_flow_[a], batch_.own[a], kOwnRank); }

  // Calls visit(vertex, step, flow, sign) for every residual step out of a vertex, until it returns
  // true.
  template <class Visit>
  void for_each_step(int64_t vertex, Visit&& visit) {
    if (vertex < num_experts_) {
      for (int64_t h = first_hub(vertex); h < first_hub(vertex + 1); ++h) {
        if (visit(hub_vertex(h), to_hub(h), hub_flow_[h], 1)) return;
      }
    } else if (vertex < num_experts_ + num_hubs_) {
      const int64_t h = vertex - num_experts_;
      for (int64_t a = first_arc(h); a < first_arc(h + 1); ++a) {
        if (visit(rank_vertex(arc_rank(a)), to_rank(a), arc_flow_[a], 1)) return;
      }
      if (hub_flow_[h] > 0) visit(table_.hub_expert[h], from_hub(h), hub_flow_[h], -1);
    } else {
      const int64_t r = vertex - num_experts_ - num_hubs_;
      for (int64_t i = table_.first_rank_arc[r]; i < table_.first_rank_arc[r + 1]; ++i) {
        const int64_t a = table_.rank_arc[i];
        if (arc_flow_[a] == 0) continue;
        if (visit(hub_vertex(table_.arc_hub[a]), from_rank(a), arc_flow_[a], -1)) return;
      }
    }
  }

  // Shortest residual distances from all experts with tokens left (Bellman-Ford with a queue; there
  // is no negative cycle). Returns the least distance of a rank with room, kFar when none is
  // reached.
  int64_t find_distances() {
    std::fill(distance_.begin(), distance_.end(), kFar);
    std::fill(queued_.begin(), queued_.end(), uint8_t{0});
    int64_t head = 0;
    int64_t waiting = 0;
    const auto reach = [&](int64_t vertex, int64_t distance) {
      if (distance >= distance_[vertex]) return;
      distance_[vertex] = distance;
      if (queued_[vertex]) return;
      queued_[vertex] = 1;
      queue_[(head + waiting++) % num_vertices_] = static_cast<int32_t>(vertex);
    };
    for (int64_t e = 0; e < num_experts_; ++e) {
      if (supply_[e] > 0) reach(e, 0);
    }
    while (waiting > 0) {
      const int64_t vertex = queue_[head];
      head = (head + 1) % num_vertices_;
      --waiting;
      queued_[vertex] = 0;
      for_each_step(vertex, [&](int64_t to, Step step, int64_t&, int) {
        reach(to, distance_[vertex] + step.cost);
        return false;
      });
    }
    int64_t nearest = kFar;
    for (int64_t r = 0; r < num_ranks(); ++r) {
      if (room_[r] > 0) nearest = std::min(nearest, distance_[rank_vertex(r)]);
    }
    return nearest;
  }

  // Pushes up to `tokens` from a vertex along shortest steps to ranks with room at distance
  // `nearest`. A vertex that can't pass on all it is offered stays visited; others may be asked
  // again.
  int64_t push(int64_t vertex, int64_t tokens, int64_t nearest) {
    visited_[vertex] = 1;
    int64_t pushed = 0;
    if (vertex >= num_experts_ + num_hubs_ && distance_[vertex] == nearest) {
      int64_t& room = room_[vertex - num_experts_ - num_hubs_];
      pushed = std::min(tokens, room);
      room -= pushed;
    }
    if (pushed < tokens) {
      for_each_step(vertex, [&](int64_t to, Step step, int64_t& flow, int sign) {
        if (visited_[to] || distance_[to] != distance_[vertex] + step.cost) return false;
        const int64_t through = push(to, std::min(tokens - pushed, step.room), nearest);
        flow += sign * through;
        pushed += through;
        return pushed == tokens;
      });
    }
    if (pushed == tokens) visited_[vertex] = 0;
    return pushed;
  }

  // Sends all tokens to ranks, cheapest paths first. False when some find no room.
  bool augment_all() {
    for (;;) {
      if (std::all_of(supply_.begin(), supply_.end(), [](int64_t s) { return s == 0; }))
        return true;
      const int64_t nearest = find_distances();
      if (nearest == kFar) return false;
      for (int64_t pushed = -1; pushed != 0;) {
        pushed = 0;
        std::fill(visited_.begin(), visited_.end(), uint8_t{0});
        for (int64_t e = 0; e < num_experts_; ++e) {
          if (supply_[e] == 0 || visited_[e] || distance_[e] != 0) continue;
          const int64_t sent = push(e, supply_[e], nearest);
          supply_[e] -= sent;
          pushed += sent;
        }
      }
    }
  }

  // Tokens without room reach only full ranks, and only experts all of whose ranks are reached:
  // these ranks must carry these experts whatever the shares.
  int64_t witnessed_peak() const {
    int64_t tokens = 0;
    int64_t ranks = 0;
    for (int64_t e = 0; e < num_experts_; ++e) {
      if (distance_[e] < kFar) tokens += batch_.shared[e];
    }
    for (int64_t r = 0; r < num_ranks(); ++r) {
      if (distance_[rank_vertex(r)] == kFar) continue;
      tokens += batch_.fixed[r];
      ++ranks;
    }
    return (tokens + ranks - 1) / ranks;
  }

  const SplitTable& table_;
  const BatchTotals& batch_;
  const int64_t num_experts_, num_hubs_, num_vertices_;
  std::span<int64_t> arc_flow_, hub_flow_;
  std::span<int64_t> supply_;    // [experts] tokens not yet on a rank
  std::span<int64_t> room_;      // [ranks] below the peak
  std::span<int64_t> distance_;  // [vertices]
  std::span<int32_t> queue_;     // [vertices] a ring
  std::span<uint8_t> queued_, visited_;
  bool count_hops_ = false;  // while searching for the peak, steps count, not what they cost
};

}  // namespace

int64_t peak_flow(const SplitTable& table, const BatchTotals& batch, Workspace& workspace,
                  std::span<int64_t> flow) {
  const size_t mark = workspace.mark();
  const int64_t peak = Flow(table, batch, workspace, flow).solve();
  workspace.release(mark);
  return peak;
}

int64_t least_peak(const SplitTable& table, const BatchTotals& batch, Workspace& workspace,
                   std::span<int64_t> flow) {
  const size_t mark = workspace.mark();
  const int64_t peak = Flow(table, batch, workspace, flow).least_peak();
  workspace.release(mark);
  return peak;
}

size_t peak_flow_bytes(const SplitSizes& sizes) {
  const size_t vertices = sizes.shared + sizes.hubs + sizes.ranks;
  return Workspace::padded(sizes.hubs * 8) + Workspace::padded(sizes.shared * 8) +
         Workspace::padded(sizes.ranks * 8) + Workspace::padded(vertices * 8) +
         Workspace::padded(vertices * 4) + 2 * Workspace::padded(vertices);
}

}  // namespace trimtab
