// SPDX-License-Identifier: Apache-2.0
#include "trimtab/split.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "split/exact_split.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

constexpr std::pair<std::string_view, SplitRule> kRules[] = {
    {"static", SplitRule::kStatic},
    {"round_robin", SplitRule::kRoundRobin},
    {"split", SplitRule::kSplit},
    {"time", SplitRule::kTime}};

void check(const SplitTable& table, std::span<const int32_t> counts, std::span<int32_t> shares) {
  if (counts.size() != cells(table.num_ranks, table.num_experts) ||
      shares.size() != cells(table.num_ranks, table.num_slots)) {
    throw InvalidArgument(cat("split of ", table.num_ranks, " ranks x ", table.num_experts,
                              " experts over ", table.num_slots, " slots got ", counts.size(),
                              " counts and ", shares.size(), " shares"));
  }
  int32_t signs = 0;
  for (const int32_t count : counts) signs |= count;
  if (signs >= 0) return;
  const auto bad =
      std::find_if(counts.begin(), counts.end(), [](int32_t count) { return count < 0; }) -
      counts.begin();
  throw InvalidArgument(cat("rank ", bad / table.num_experts, " has ", counts[bad],
                            " tokens for expert ", bad % table.num_experts,
                            ", expected 0 or more"));
}

void check_speeds(const SplitTable& table, const CostModel& cost) {
  if (cost.has_speeds() && std::ssize(cost.speeds()) != table.num_ranks) {
    throw InvalidArgument(cat("the cost model has speeds of ", cost.speeds().size(),
                              " ranks, expected ", table.num_ranks));
  }
}

void split_static(const SplitTable& table, Table<const int32_t> counts, Table<int32_t> shares) {
  const Table<const int32_t> static_slot(table.static_slot, table.num_experts);
  for (int source = 0; source < table.num_ranks; ++source) {
    const std::span<const int32_t> slot_of = static_slot[source], of_source = counts[source];
    const std::span<int32_t> row = shares[source];
    for (int e = 0; e < table.num_experts; ++e) row[slot_of[e]] = of_source[e];
  }
}

// Deals the tokens of an expert, source after source, to its replicas in turn. The first card goes
// to replica e % replicas, so that the odd tokens of many experts do not all fall on low ranks.
void deal(int expert, const SplitTable& table, Table<const int32_t> counts, Table<int32_t> shares) {
  const int32_t first = table.first_replica[expert];
  const int32_t replicas = table.first_replica[expert + 1] - first;
  const std::span<const int32_t> slots = std::span(table.replica_slot).subspan(first, replicas);
  int32_t turn = expert % replicas;
  for (int source = 0; source < table.num_ranks; ++source) {
    const int32_t count = counts(source, expert);
    const std::span<int32_t> row = shares[source];
    if (replicas == 1) {
      row[slots[0]] = count;
      continue;
    }
    for (const int32_t slot : slots) row[slot] = count / replicas;
    for (int32_t rest = count % replicas; rest > 0; --rest) {
      ++row[slots[turn]];
      turn = turn + 1 == replicas ? 0 : turn + 1;
    }
  }
}

void split_round_robin(const SplitTable& table, Table<const int32_t> counts,
                       Table<int32_t> shares) {
  for (int e = 0; e < table.num_experts; ++e) deal(e, table, counts, shares);
}

}  // namespace

SplitRule parse_split_rule(std::string_view name) {
  for (const auto& [known, rule] : kRules) {
    if (known == name) return rule;
  }
  throw InvalidArgument(
      cat("no split rule '", name, "'; there are static, round_robin, split and time"));
}

std::string_view name(SplitRule rule) {
  for (const auto& [known, of] : kRules) {
    if (of == rule) return known;
  }
  return "";
}

void check_cost(SplitRule rule, const SplitTable& table, const CostModel* cost) {
  if (rule == SplitRule::kTime && cost == nullptr)
    throw InvalidArgument("split rule time needs a cost model");
  if (cost != nullptr) check_speeds(table, *cost);
}

size_t split_workspace_bytes(const SplitTable& table) {
  return exact_split_bytes(SplitSizes(table));
}

// An expert on several ranks has one slot more than those on one rank for each of its ranks but the
// first.
size_t split_workspace_bytes(int num_ranks, int num_experts, int num_slots) {
  if (num_ranks < 1 || num_experts < 1 || num_slots < num_experts) {
    throw InvalidArgument(cat("no placement has ", num_experts, " experts in ", num_slots,
                              " slots of ", num_ranks, " ranks"));
  }
  const size_t redundant = cells(num_slots - num_experts);
  SplitSizes most;
  most.ranks = cells(num_ranks);
  most.experts = cells(num_experts);
  most.shared = std::min(most.experts, redundant);
  most.hubs = most.arcs = most.shared + redundant;
  return exact_split_bytes(most);
}

void split_tokens(SplitRule rule, const SplitTable& table, std::span<const int32_t> counts,
                  Workspace& workspace, std::span<int32_t> shares, const CostModel* cost) {
  check(table, counts, shares);
  check_cost(rule, table, cost);
  std::fill(shares.begin(), shares.end(), 0);
  switch (rule) {
    case SplitRule::kStatic:
      return split_static(table, {counts, table.num_experts}, {shares, table.num_slots});
    case SplitRule::kRoundRobin:
      return split_round_robin(table, {counts, table.num_experts}, {shares, table.num_slots});
    case SplitRule::kSplit:
      return exact_split(table, counts, nullptr, workspace, shares);
    case SplitRule::kTime:
      return exact_split(table, counts, cost, workspace, shares);
  }
}

void assign_slots(const SplitTable& table, std::span<int32_t> share_row, std::span<int32_t> ids) {
  if (std::ssize(share_row) != table.num_slots) {
    throw InvalidArgument(
        cat("a row of ", share_row.size(), " shares for ", table.num_slots, " slots"));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t expert = ids[i];
    if (expert == -1) continue;
    if (expert < 0 || expert >= table.num_experts) {
      throw InvalidArgument(
          cat("id ", i, " is ", expert, ", expected -1 or an expert below ", table.num_experts));
    }
    int32_t replica = table.first_replica[expert];
    const int32_t end = table.first_replica[expert + 1];
    while (replica < end && share_row[table.replica_slot[replica]] == 0) ++replica;
    if (replica == end) throw InvalidArgument(cat("id ", i, ": no share left for expert ", expert));
    ids[i] = table.replica_slot[replica];
    --share_row[ids[i]];
  }
}

void split_rank_loads(const SplitTable& table, std::span<const int32_t> shares,
                      std::span<int64_t> loads) {
  if (std::ssize(loads) != table.num_ranks ||
      shares.size() != cells(table.num_ranks, table.num_slots)) {
    throw InvalidArgument(cat(shares.size(), " shares and ", loads.size(), " loads for ",
                              table.num_ranks, " ranks x ", table.num_slots, " slots"));
  }
  std::fill(loads.begin(), loads.end(), 0);
  const Table<const int32_t> of_sources(shares, table.num_slots);
  for (int source = 0; source < table.num_ranks; ++source) {
    const std::span<const int32_t> row = of_sources[source];
    for (int slot = 0; slot < table.num_slots; ++slot) loads[table.rank_of_slot[slot]] += row[slot];
  }
}

void split_rank_times(const SplitTable& table, std::span<const int32_t> shares,
                      const CostModel& cost, std::span<int64_t> times) {
  if (std::ssize(times) != table.num_ranks ||
      shares.size() != cells(table.num_ranks, table.num_slots)) {
    throw InvalidArgument(cat(shares.size(), " shares and ", times.size(), " times for ",
                              table.num_ranks, " ranks x ", table.num_slots, " slots"));
  }
  check_speeds(table, cost);
  std::ranges::fill(times, 0);
  const Table<const int32_t> of_sources(shares, table.num_slots);
  for (int slot = 0; slot < table.num_slots; ++slot) {
    const int32_t rank = table.rank_of_slot[slot];
    int64_t rows = 0;
    for (int source = 0; source < table.num_ranks; ++source) rows += of_sources(source, slot);
    times[rank] += cost.time(rows) + cost.wire_picoseconds() * (rows - of_sources(rank, slot));
  }
  for (int r = 0; r < table.num_ranks; ++r) times[r] = cost.time_on_rank(times[r], r);
}

}  // namespace trimtab
