// SPDX-License-Identifier: Apache-2.0
#include "trimtab/split.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "split/exact_split.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr std::pair<std::string_view, SplitRule> kRules[] = {
    {"static", SplitRule::kStatic},
    {"round_robin", SplitRule::kRoundRobin},
    {"split", SplitRule::kSplit}};

void check(const SplitTable& table, std::span<const int32_t> counts, std::span<int32_t> shares) {
  const auto ranks = static_cast<size_t>(table.num_ranks);
  const auto experts = static_cast<size_t>(table.num_experts);
  const auto slots = static_cast<size_t>(table.num_slots);
  if (counts.size() != ranks * experts || shares.size() != ranks * slots) {
    throw InvalidArgument(cat("split of ", ranks, " ranks x ", experts, " experts over ", slots,
                              " slots got ", counts.size(), " counts and ", shares.size(),
                              " shares"));
  }
  int32_t signs = 0;
  for (const int32_t count : counts) signs |= count;
  if (signs >= 0) return;
  const auto bad = static_cast<size_t>(
      std::find_if(counts.begin(), counts.end(), [](int32_t count) { return count < 0; }) -
      counts.begin());
  throw InvalidArgument(cat("rank ", bad / experts, " has ", counts[bad], " tokens for expert ",
                            bad % experts, ", expected 0 or more"));
}

void split_static(const SplitTable& table, std::span<const int32_t> counts,
                  std::span<int32_t> shares) {
  const auto experts = static_cast<size_t>(table.num_experts);
  for (size_t source = 0; source < static_cast<size_t>(table.num_ranks); ++source) {
    const std::span<int32_t> row = shares.subspan(source * static_cast<size_t>(table.num_slots));
    for (size_t e = 0; e < experts; ++e) {
      row[static_cast<size_t>(table.static_slot[source * experts + e])] =
          counts[source * experts + e];
    }
  }
}

// Deals the tokens of an expert, source after source, to its replicas in turn. The first card goes
// to replica e % copies, so that the odd tokens of many experts do not all fall on low ranks.
void deal(size_t expert, const SplitTable& table, std::span<const int32_t> counts,
          std::span<int32_t> shares) {
  const auto first = static_cast<size_t>(table.first_replica[expert]);
  const size_t copies = static_cast<size_t>(table.first_replica[expert + 1]) - first;
  const std::span<const int32_t> slots = std::span(table.replica_slot).subspan(first, copies);
  size_t turn = expert % copies;
  for (size_t source = 0; source < static_cast<size_t>(table.num_ranks); ++source) {
    const auto count =
        static_cast<size_t>(counts[source * static_cast<size_t>(table.num_experts) + expert]);
    const std::span<int32_t> row = shares.subspan(source * static_cast<size_t>(table.num_slots));
    if (copies == 1) {
      row[slots[0]] = static_cast<int32_t>(count);
      continue;
    }
    for (const int32_t slot : slots) row[slot] = static_cast<int32_t>(count / copies);
    for (size_t rest = count % copies; rest > 0; --rest) {
      ++row[slots[turn]];
      turn = turn + 1 == copies ? 0 : turn + 1;
    }
  }
}

void split_round_robin(const SplitTable& table, std::span<const int32_t> counts,
                       std::span<int32_t> shares) {
  for (size_t e = 0; e < static_cast<size_t>(table.num_experts); ++e)
    deal(e, table, counts, shares);
}

}  // namespace

SplitRule parse_split_rule(std::string_view name) {
  for (const auto& [known, rule] : kRules) {
    if (known == name) return rule;
  }
  throw InvalidArgument(cat("no split rule '", name, "'; there are static, round_robin and split"));
}

std::string_view name(SplitRule rule) {
  for (const auto& [known, of] : kRules) {
    if (of == rule) return known;
  }
  return "";
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
  const auto redundant = static_cast<size_t>(num_slots - num_experts);
  SplitSizes most;
  most.ranks = static_cast<size_t>(num_ranks);
  most.experts = static_cast<size_t>(num_experts);
  most.shared = std::min(most.experts, redundant);
  most.hubs = most.arcs = most.shared + redundant;
  return exact_split_bytes(most);
}

void split_tokens(SplitRule rule, const SplitTable& table, std::span<const int32_t> counts,
                  Workspace& workspace, std::span<int32_t> shares) {
  check(table, counts, shares);
  std::fill(shares.begin(), shares.end(), 0);
  switch (rule) {
    case SplitRule::kStatic:
      return split_static(table, counts, shares);
    case SplitRule::kRoundRobin:
      return split_round_robin(table, counts, shares);
    case SplitRule::kSplit:
      return exact_split(table, counts, workspace, shares);
  }
}

void assign_slots(const SplitTable& table, std::span<int32_t> share_row, std::span<int32_t> ids) {
  if (share_row.size() != static_cast<size_t>(table.num_slots)) {
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
    while (replica < end && share_row[static_cast<size_t>(table.replica_slot[replica])] == 0)
      ++replica;
    if (replica == end) throw InvalidArgument(cat("id ", i, ": no share left for expert ", expert));
    ids[i] = table.replica_slot[replica];
    --share_row[ids[i]];
  }
}

void split_rank_loads(const SplitTable& table, std::span<const int32_t> shares,
                      std::span<int64_t> loads) {
  const auto slots = static_cast<size_t>(table.num_slots);
  if (loads.size() != static_cast<size_t>(table.num_ranks) ||
      shares.size() != loads.size() * slots) {
    throw InvalidArgument(cat(shares.size(), " shares and ", loads.size(), " loads for ",
                              table.num_ranks, " ranks x ", slots, " slots"));
  }
  std::fill(loads.begin(), loads.end(), 0);
  for (size_t i = 0; i < shares.size(); ++i) loads[table.rank_of_slot[i % slots]] += shares[i];
}

}  // namespace trimtab
