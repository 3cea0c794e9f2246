// SPDX-License-Identifier: Apache-2.0
#include "split/time_flow.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace trimtab {
namespace {

// What one rank hands another: some tokens of one arc to another arc of the same expert.
struct Handover {
  int64_t from = -1, to = -1;  // arcs
  int64_t tokens = 0;
};

// How a search for a chain came to a rank: the move that brings work to it, and what it would then
// carry.
struct Arrival {
  Handover move;
  int64_t load = 0;
  int64_t first = -1;    // the arc of the first rank from which the chain begins
  int64_t relieved = 0;  // by how much that rank's load falls
  int64_t search = 0;    // the number of the search that came here
  bool passed = false;   // have chains been led on from here?
};

// An arc of the table: what it carries now, and where it is.
struct Replica {
  int64_t tokens = 0, price = 0;
  int64_t rank = 0;
  int64_t begin = 0, end = 0;  // the arcs of its expert
};

struct SharedTokens {
  int64_t tokens = 0;
  int64_t shared = 0;  // index into SplitTable::shared_expert
};

// kHasWire: do tokens from other ranks cost more?
template <bool kHasWire>
class TimeFlow {
 public:
  TimeFlow(const SplitTable& table, const BatchTotals& batch, const CostModel& cost,
           Workspace& workspace, std::span<int64_t> flow)
      : table_(table),
        batch_(batch),
        cost_(cost),
        wire_(cost.wire_picoseconds()),
        one_(cost.time(1)),
        replica_(workspace.take<Replica>(flow.size())),
        load_(workspace.take<int64_t>(table.num_ranks)),
        cap_(workspace.take<int64_t>(table.num_ranks)),
        best_(flow),
        visit_(workspace.take<Arrival>(table.num_ranks)),
        queue_(workspace.take<int64_t>(table.num_ranks)),
        order_(workspace.take<SharedTokens>(batch.shared.size())),
        steps_left_(kFewSteps + kStepsPerArc * std::ssize(flow)) {}

  int64_t solve() {
    begin();
    const int64_t bound = lower_bound();
    // The bound itself is seldom reached: experts that stay whole a little above it leave less to
    // be moved.
    aim_at(bound + bound / 16);
    place_all();
    least_ = peak();
    keep();
    // Long batches are worth a longer search.
    const int64_t further = bound / kTimeOfAStep;
    steps_left_ += std::min(further, kStepsPerArc * 8 * std::ssize(replica_));
    precision_ = further > kFewSteps / 4 ? 8 : 6;
    // Parts of what a rank is over seldom help where weights cost most: first without.
    seek(bound, 0);
    steps_left_ = std::min(steps_left_, kFewSteps / 2);
    seek(bound, 4);
    return least_;
  }

 private:
  // A step looks at one pair of arcs of an expert.
  static constexpr int64_t kFewSteps = 1024, kStepsPerArc = 2;
  // A step takes about 40 ns: no more than 1/500 of a batch goes to further ones.
  static constexpr int64_t kTimeOfAStep = 500 * 40'000;

  // Aims at peaks between the bound and the best one so far, half way each time.
  void seek(int64_t bound, int halvings) {
    int64_t low = bound - 1;  // out of reach, or taken to be: an aim that failed
    for (int64_t aim = bound; least_ > bound && low < least_ - 1 && steps_left_ > 0;
         aim = low + (least_ - low) / 2) {
      aim_at(aim);
      const bool reached = lower_all(halvings);
      if (const int64_t found = peak(); found < least_) {
        least_ = found;
        keep();
      }
      if (!reached) low = aim;
      if (least_ - low <= least_ >> precision_) break;
    }
  }

  // What there is now is the best so far.
  void keep() {
    for (size_t arc = 0; arc < replica_.size(); ++arc) best_[arc] = replica_[arc].tokens;
  }

  int64_t num_shared() const { return std::ssize(batch_.shared); }
  int64_t begin_arc(int64_t s) const { return table_.first_arc[table_.first_hub[s]]; }
  int64_t end_arc(int64_t s) const { return begin_arc(s + 1); }
  int64_t rank_of(int64_t arc) const { return replica_[arc].rank; }

  // What the tokens of an arc cost its rank. Those of the rank itself come first.
  int64_t price(int64_t arc, int64_t tokens) const {
    if constexpr (!kHasWire) return cost_.time(tokens);
    return cost_.time(tokens) + wire_ * std::max<int64_t>(0, tokens - batch_.own[arc]);
  }
  // The most tokens whose price is no more than this.
  int64_t within(int64_t arc, int64_t budget) const {
    if (budget <= 0) return 0;
    int64_t most = cost_.rows_within(budget);
    if (!kHasWire || most <= batch_.own[arc]) return most;
    int64_t least = std::min(most, batch_.own[arc]);
    while (least < most) {
      const int64_t middle = least + (most - least + 1) / 2;
      if (price(arc, middle) <= budget) {
        least = middle;
      } else {
        most = middle - 1;
      }
    }
    return least;
  }

  void begin() {
    for (int64_t s = 0; s < num_shared(); ++s) {
      const int64_t begin = begin_arc(s), end = end_arc(s);
      for (int64_t a = begin; a < end; ++a)
        replica_[a] = {.rank = table_.arc_rank[a], .begin = begin, .end = end};
      order_[s] = {.tokens = batch_.shared[s], .shared = s};
    }
    std::ranges::copy(batch_.fixed, load_.begin());
    std::ranges::fill(visit_, Arrival{});
    std::ranges::sort(order_, [](const SharedTokens& a, const SharedTokens& b) {
      return a.tokens != b.tokens ? a.tokens > b.tokens : a.shared < b.shared;
    });
  }

  int64_t time_of(int64_t rank, int64_t work) const { return cost_.time_on_rank(work, rank); }
  int64_t peak() const {
    int64_t peak = 0;
    for (int64_t r = 0; r < std::ssize(load_); ++r) peak = std::max(peak, time_of(r, load_[r]));
    return peak;
  }
  void aim_at(int64_t peak) {
    for (int64_t r = 0; r < std::ssize(cap_); ++r) cap_[r] = cost_.work_within(peak, r);
  }

  void set(int64_t arc, int64_t tokens) {
    Replica& replica = replica_[arc];
    const int64_t price_now = price(arc, tokens);
    load_[replica.rank] += price_now - replica.price;
    replica.price = price_now;
    replica.tokens = tokens;
  }
  void apply(const Handover& move) {
    const auto from = move.from, to = move.to;
    set(from, replica_[from].tokens - move.tokens);
    set(to, replica_[to].tokens + move.tokens);
  }

  // No rank can be done before the time of its sole experts, all ranks together not before all
  // work, and an expert not before the least time of its ranks. True bounds where a cost model
  // takes no more time for one replica than for two that share its tokens, as measured ones do.
  int64_t lower_bound() const {
    int64_t work = std::accumulate(load_.begin(), load_.end(), int64_t{0});
    for (const int64_t tokens : batch_.shared) work += cost_.time(tokens);
    int64_t bound = std::max(peak(), least_time_of(work));
    for (int64_t s = 0; s < num_shared(); ++s) bound = least_peak_of(s, bound);
    return bound;
  }
  // The least time in which all ranks together do some work.
  int64_t least_time_of(int64_t work) const {
    const int64_t ranks = std::ssize(load_);
    if (!cost_.has_speeds()) return (work + ranks - 1) / ranks;
    return least_that(0, [&](int64_t time) {
      int64_t left = work;
      for (int r = 0; r < ranks && left > 0; ++r) left -= cost_.work_within(time, r);
      return left <= 0;
    });
  }
  // The least value above `low` that is enough.
  template <class Enough>
  static int64_t least_that(int64_t low, const Enough& enough) {
    int64_t high = std::max<int64_t>(1, low);
    while (!enough(high)) {
      low = high;
      high *= 2;
    }
    while (low + 1 < high) {
      const int64_t middle = low + (high - low) / 2;
      (enough(middle) ? high : low) = middle;
    }
    return high;
  }

  // The least peak of an expert's ranks if they had nothing else to share, at least `least`.
  int64_t least_peak_of(int64_t s, int64_t least) const {
    const int64_t tokens = batch_.shared[s];
    if (tokens == 0) return least;
    for (int64_t a = begin_arc(s); a < end_arc(s); ++a) {
      const int64_t r = rank_of(a);
      if (time_of(r, load_[r] + price(a, tokens)) <= least) return least;
    }
    if (room_of(s, least) >= tokens) return least;
    return least_that(least, [&](int64_t time) { return room_of(s, time) >= tokens; });
  }
  // Tokens of the expert for which its ranks have time.
  int64_t room_of(int64_t s, int64_t time) const {
    int64_t room = 0;
    for (int64_t a = begin_arc(s); a < end_arc(s); ++a) {
      const int64_t r = rank_of(a);
      room += within(a, cost_.work_within(time, r) - load_[r]);
    }
    return room;
  }

  // Experts with many tokens first.
  void place_all() {
    for (const SharedTokens& expert : order_) place(expert.shared);
  }

  // Whole on the rank that is done first with it, if below the aim; else up to the aim on each, and
  // what is left to the one that is done first.
  void place(int64_t s) {
    int64_t tokens = batch_.shared[s];
    if (tokens == 0) return;
    if (const int64_t a = first_done(s, tokens); fits(a, tokens)) return set(a, tokens);
    for (;;) {
      int64_t roomiest = end_arc(s);
      int64_t most = 0;
      for (int64_t a = begin_arc(s); a < end_arc(s); ++a) {
        if (replica_[a].tokens > 0) continue;
        const int64_t r = rank_of(a);
        const int64_t room = within(a, cap_[r] - load_[r]);
        if (room > most) roomiest = a, most = room;
      }
      if (roomiest == end_arc(s)) break;
      set(roomiest, std::min(tokens, most));
      tokens -= replica_[roomiest].tokens;
      if (tokens == 0) return;
    }
    const int64_t a = first_done(s, tokens);
    set(a, replica_[a].tokens + tokens);
  }
  bool fits(int64_t arc, int64_t tokens) const {
    const int64_t r = rank_of(arc);
    return load_[r] - replica_[arc].price + price(arc, replica_[arc].tokens + tokens) <= cap_[r];
  }
  int64_t first_done(int64_t s, int64_t more) const {
    int64_t first = begin_arc(s);
    int64_t earliest = std::numeric_limits<int64_t>::max();
    for (int64_t a = begin_arc(s); a < end_arc(s); ++a) {
      const int64_t r = rank_of(a);
      const int64_t time =
          time_of(r, load_[r] - replica_[a].price + price(a, replica_[a].tokens + more));
      if (time < earliest) earliest = time, first = a;
    }
    return first;
  }

  // Takes every rank below the aim. False when one can't get there.
  bool lower_all(int halvings) {
    for (;;) {
      int64_t worst = 0;
      int64_t most = 0;
      for (int64_t r = 0; r < std::ssize(load_); ++r) {
        if (load_[r] - cap_[r] > most) worst = r, most = load_[r] - cap_[r];
      }
      if (most == 0) return true;
      if (!lower(worst, halvings)) return false;
    }
  }

  // Takes work off a rank that is above the aim. What can't go at once goes in parts, each half of
  // the one before.
  bool lower(int64_t rank, int halvings) {
    const int64_t over = load_[rank] - cap_[rank];
    if (hand_over(rank, over)) return true;
    for (int i = 0; i <= halvings && over >> i > 0 && steps_left_ > 0; ++i) {
      if (hand_on(rank, over >> i)) return true;
    }
    return false;
  }

  // Calls visit(arc) for each replica with tokens on a rank, until it returns true.
  template <class Visitor>
  void for_each_used(int64_t rank, Visitor&& visit) {
    const auto first = table_.first_rank_arc[rank];
    const auto end = table_.first_rank_arc[rank + 1];
    for (int64_t i = first; i < end; ++i) {
      const auto arc = table_.rank_arc[i];
      if (replica_[arc].tokens > 0 && visit(arc)) return;
    }
  }
  // The same for each other replica of its expert.
  template <class Visitor>
  void for_each_other(int64_t arc, Visitor&& visit) {
    const int64_t end = replica_[arc].end;
    for (int64_t to = replica_[arc].begin; to < end; ++to) {
      if (to == arc) continue;
      --steps_left_;
      if (visit(to)) return;
    }
  }

  // The fewest tokens to take off an arc so that its price falls by `less`; 0 when not even all are
  // enough.
  int64_t tokens_worth(int64_t arc, int64_t less) const {
    const auto& [tokens, price, rank, begin, end] = replica_[arc];
    if (price < less) return 0;
    if (price - less < one_) return tokens;
    return tokens - std::min(tokens - 1, within(arc, price - less));
  }

  // Hands tokens to a rank that has room for them: what brings the rank to its aim and makes the
  // least work more, else what takes most off it.
  bool hand_over(int64_t rank, int64_t over) {
    Handover best;
    bool best_is_enough = false;
    int64_t best_score = 0;
    for_each_used(rank, [&](int64_t from) {
      const Replica& giver = replica_[from];
      const auto consider = [&](int64_t to, int64_t tokens, int64_t more) {
        const int64_t less = giver.price - price(from, giver.tokens - tokens);
        if (less <= 0) return;
        const bool is_enough = less >= over;
        const int64_t score = is_enough ? less - more : less;
        if (best.from >= 0 && (is_enough != best_is_enough ? best_is_enough : score <= best_score))
          return;
        best = {.from = from, .to = to, .tokens = tokens};
        best_is_enough = is_enough;
        best_score = score;
      };
      int64_t enough = -1;  // not yet known
      for_each_other(from, [&](int64_t to) {
        const Replica& taker = replica_[to];
        const int64_t room = cap_[taker.rank] - load_[taker.rank];
        const auto more = [&](int64_t tokens) {
          return price(to, taker.tokens + tokens) - taker.price;
        };
        if (room <= 0 || more(1) > room) return false;
        if (enough < 0) enough = tokens_worth(from, over);
        if (const int64_t all = more(giver.tokens); all <= room) consider(to, giver.tokens, all);
        const int64_t fit = std::min(giver.tokens, within(to, room + taker.price) - taker.tokens);
        const int64_t some = enough > 0 ? std::min(enough, fit) : fit;
        if (some < giver.tokens) consider(to, some, more(some));
        return false;
      });
      return false;
    });
    if (best.from < 0) return false;
    apply(best);
    return true;
  }

  // Hands `less` of a rank's time on along a chain of ranks, of which only the last has room.
  bool hand_on(int64_t root, int64_t less) {
    ++search_;
    visit_[root] = {.search = search_};
    int64_t head = 0, tail = 0;
    queue_[tail++] = root;
    bool found = false;
    while (head < tail && !found && steps_left_ > 0) {
      const auto at = queue_[head++];
      Arrival& here = visit_[at];
      here.passed = true;
      const int64_t over = at == root ? less : here.load - cap_[at];
      for_each_used(at, [&](int64_t from) {
        if (from == here.move.to) return false;
        const int64_t enough = tokens_worth(from, over);
        if (enough == 0) return false;
        const int64_t all = replica_[from].tokens;
        for_each_other(from, [&](int64_t to) {
          const int64_t r = rank_of(to);
          if (visit_[r].search == search_ && visit_[r].passed && (r != root || at == root))
            return false;
          found = reach(root, less, from, to, enough, tail) ||
                  (enough < all && reach(root, less, from, to, all, tail));
          return found;
        });
        return found;
      });
    }
    return found;
  }

  // Notes that a rank can be reached by a move. True when the chain can end there; it is applied
  // then.
  bool reach(int64_t root, int64_t less, int64_t from, int64_t to, int64_t tokens, int64_t& tail) {
    const Replica& taker = replica_[to];
    const int64_t at = rank_of(from), r = taker.rank;
    const int64_t more = price(to, taker.tokens + tokens) - taker.price;
    const Handover move = {.from = from, .to = to, .tokens = tokens};
    Arrival& there = visit_[r];
    if (r == root) {
      // An exchange: the rank takes less than it gives.
      if (visit_[at].first == to || visit_[at].relieved - more < less) return false;
      apply(move);
      apply_chain(root, at);
      return true;
    }
    const int64_t load = load_[r] + more;
    const bool seen = there.search == search_;
    if (seen && there.load <= load) return false;
    there.move = move;
    there.load = load;
    there.search = search_;
    there.passed = false;
    if (at == root) {
      there.first = from;
      there.relieved = replica_[from].price - price(from, replica_[from].tokens - tokens);
    } else {
      there.first = visit_[at].first;
      there.relieved = visit_[at].relieved;
    }
    if (load <= cap_[r]) {
      apply_chain(root, r);
      return true;
    }
    if (!seen) queue_[tail++] = r;
    return false;
  }

  void apply_chain(int64_t root, int64_t rank) {
    while (rank != root) {
      const Handover move = visit_[rank].move;
      apply(move);
      rank = rank_of(move.from);
    }
  }

  const SplitTable& table_;
  const BatchTotals& batch_;
  const CostModel& cost_;
  const int64_t wire_, one_;    // the time of a token from another rank, and of a replica with one
  std::span<Replica> replica_;  // [arcs]
  std::span<int64_t> load_;     // [ranks] the sum of the prices, and what is fixed
  std::span<int64_t> cap_;      // [ranks] the most load that is within the aim
  std::span<int64_t> best_;     // [arcs] the tokens with the least peak so far
  std::span<Arrival> visit_;    // [ranks] of the chains that are being sought
  std::span<int64_t> queue_;    // [ranks]
  std::span<SharedTokens> order_;  // [shared experts] those with many tokens first
  int64_t search_ = 0;             // how many times a chain was sought
  int64_t steps_left_;
  int64_t least_ = 0;  // the least peak so far
  int precision_ = 6;  // the search ends within 1/2^precision_ of the last aim that failed
};

}  // namespace

int64_t time_flow(const SplitTable& table, const BatchTotals& batch, const CostModel& cost,
                  Workspace& workspace, std::span<int64_t> flow) {
  const int64_t mark = workspace.mark();
  const int64_t peak = cost.wire_picoseconds() > 0
                           ? TimeFlow<true>(table, batch, cost, workspace, flow).solve()
                           : TimeFlow<false>(table, batch, cost, workspace, flow).solve();
  workspace.release(mark);
  return peak;
}

size_t time_flow_bytes(const SplitSizes& sizes) {
  return Workspace::padded(sizes.arcs * sizeof(Replica)) + 3 * Workspace::padded(sizes.ranks * 8) +
         Workspace::padded(sizes.ranks * sizeof(Arrival)) +
         Workspace::padded(sizes.shared * sizeof(SharedTokens));
}

}  // namespace trimtab
