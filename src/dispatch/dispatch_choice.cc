// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatch_choice.h"

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using Situation = DispatchSituation;

constexpr DispatchRule kRules[] = {
    {"grouped", "every rank has the same tokens", [](const Situation& s) { return s.same_tokens; }},
    {"pull_batched", "one host, experts that take rows in blocks of a capacity",
     [](const Situation& s) { return s.hosts == 1 && s.format == Format::kBatched; }},
    {"fused", "one host, experts that read rows where their sources have them",
     [](const Situation& s) { return s.hosts == 1 && s.format == Format::kIndirect; }},
    {"packed", "one host, results that travel as another type than F32",
     [](const Situation& s) {
       return s.hosts == 1 && s.format == Format::kStandard && s.results != DType::kF32;
     }},
    {"pull", "one host: ranks read each other's memory",
     [](const Situation& s) { return s.hosts == 1 && s.format == Format::kStandard; }},
    {"packed", "several hosts, sums in the order of the ids",
     [](const Situation& s) { return s.format == Format::kStandard && s.exact_order; }},
    {"packed", "several hosts of one rank: a token goes once to each",
     [](const Situation& s) { return s.format == Format::kStandard && s.hosts == s.ranks; }},
    {"hybrid", "several hosts of several ranks: a token goes once to each host and is pulled there",
     [](const Situation& s) { return s.format == Format::kStandard; }},
};

// Can dispatchers of this kind do what is asked for?
bool fits(const DispatcherKind& kind, const Situation& s) {
  return kind.format == s.format && (!s.exact_order || kind.order != SumOrder::kByRank) &&
         (!s.shares_out || kind.shares_out) && (s.results == DType::kF32 || kind.sends_results) &&
         (s.hosts == 1 || !kind.needs_board) && kind.output_is_reduced != s.same_tokens;
}

}  // namespace

std::span<const DispatchRule> dispatch_rules() {
  return kRules;
}

DispatchRule choose_dispatcher(const DispatchSituation& situation, std::string_view forced) {
  if (forced != "auto") return {forced, "asked for", nullptr};
  if (situation.same_tokens) {
    const std::string_view asked = situation.shares_out    ? "shares picks out over replicas"
                                   : situation.exact_order ? "promises the order of the ids"
                                   : situation.results != DType::kF32 ? "sends results"
                                                                      : "";
    if (!asked.empty()) {
      throw InvalidArgument(cat("no dispatcher ", asked, " where every rank has the same tokens"));
    }
  }
  for (const DispatchRule& rule : kRules) {
    if (rule.holds(situation) && fits(dispatcher_kind(rule.dispatcher), situation)) return rule;
  }
  throw InvalidArgument(
      cat("no dispatcher brings rows in blocks of a capacity, or pointers to rows, to ",
          situation.ranks, " ranks on ", situation.hosts, " hosts, with results as ",
          name(situation.results)));
}

}  // namespace trimtab
