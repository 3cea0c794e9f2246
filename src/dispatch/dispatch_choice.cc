// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatch_choice.h"

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using Situation = DispatchSituation;

// all_gather brings every row to every rank in one step; packed brings a row to about min(top_k, ranks) ranks and takes
// no more bytes, but each rank has to sort first. Up to so many bytes in all the sorting costs more.
constexpr int64_t kSmallBatchBytes = 256 << 10;

constexpr DispatchRule kRules[] = {
    {"grouped", "every rank has the same tokens", [](const Situation& s) { return s.same_tokens; }},
    {"pull_batched", "one host, experts that take rows in blocks of a capacity",
     [](const Situation& s) { return s.hosts == 1 && s.format == Format::kBatched; }},
    {"pull", "one host: ranks read each other's memory",
     [](const Situation& s) { return s.hosts == 1 && s.format == Format::kStandard; }},
    {"all_to_all", "several hosts, picks are shared out over replicas",
     [](const Situation& s) { return s.format == Format::kStandard && s.shares_out; }},
    {"packed", "several hosts, sums in the order of the ids",
     [](const Situation& s) { return s.format == Format::kStandard && s.exact_order; }},
    {"all_gather", "two hosts of one rank, at least as many picks as ranks, a small batch",
     [](const Situation& s) {
       return s.format == Format::kStandard && s.hosts == s.ranks && s.ranks == 2 && s.top_k >= s.ranks &&
              s.ranks * s.max_tokens * s.hidden * 4 <= kSmallBatchBytes;
     }},
    {"packed", "several hosts of one rank: a token goes once to each",
     [](const Situation& s) { return s.format == Format::kStandard && s.hosts == s.ranks; }},
    {"hybrid", "several hosts of several ranks: a token goes once to each host and is pulled there",
     [](const Situation& s) { return s.format == Format::kStandard; }},
};

}  // namespace

std::span<const DispatchRule> dispatch_rules() {
  return kRules;
}

DispatchRule choose_dispatcher(const DispatchSituation& situation, std::string_view forced) {
  if (forced != "auto") return {forced, "asked for", nullptr};
  if (situation.same_tokens && situation.shares_out) {
    throw InvalidArgument("no dispatcher shares picks out over replicas where every rank has the same tokens");
  }
  for (const DispatchRule& rule : kRules) {
    if (rule.holds(situation)) return rule;
  }
  throw InvalidArgument(cat("no dispatcher brings rows in blocks of a capacity to ", situation.ranks, " ranks on ",
                            situation.hosts, " hosts"));
}

}  // namespace trimtab
