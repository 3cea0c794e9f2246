// SPDX-License-Identifier: Apache-2.0
#include "cli/run/replans.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/output/text.h"

namespace trimtab::cli {

namespace {

using Kind = BalanceEvent::Kind;

bool is_trouble(Kind kind) {
  return kind == Kind::kFailed || kind == Kind::kLate || kind == Kind::kRolledBack;
}

// One plan from kPlanned to kCommitted, or one that came to nothing.
struct Replan {
  BalanceEvent planned;
  int64_t switched = 0, rolled_back = 0, moves = 0, bytes = 0;
  std::optional<BalanceEvent> committed;
};

std::vector<Replan> replans_of(std::span<const BalanceEvent> events) {
  std::vector<Replan> all;
  for (const BalanceEvent& event : events) {
    const bool begins = event.kind == Kind::kPlanned || event.kind == Kind::kRejected ||
                        event.kind == Kind::kFailed || event.kind == Kind::kLate;
    if (begins) all.push_back({event, 0, 0, 0, 0, {}});
    if (begins || all.empty()) continue;  // the beginning of an old one may be lost
    Replan& replan = all.back();
    if (event.kind == Kind::kSwitched) {
      ++replan.switched;
      replan.moves += event.moves;
      replan.bytes += event.bytes;
    } else if (event.kind == Kind::kRolledBack) {
      ++replan.rolled_back;
    } else if (event.kind == Kind::kCommitted) {
      replan.committed = event;
    }
  }
  return all;
}

}  // namespace

std::vector<int64_t> moves_at(std::span<const BalanceEvent> events, int64_t num_steps) {
  std::vector<int64_t> moves(num_steps, -1);
  for (const BalanceEvent& event : events) {
    if (event.kind != Kind::kSwitched || event.step < 0 || event.step >= num_steps) continue;
    int64_t& at = moves[event.step];
    at = std::max<int64_t>(at, 0) + event.moves;
  }
  return moves;
}

std::vector<ReportMark> replan_marks(std::span<const BalanceEvent> events) {
  std::vector<ReportMark> marks;
  for (const BalanceEvent& event : events) {
    if (event.kind != Kind::kSwitched)
      marks.push_back({event.step, printable(valid_utf8(describe(event))), is_trouble(event.kind)});
  }
  return marks;
}

ReportTable replan_table(std::span<const BalanceEvent> events) {
  ReportTable table{"Replans", "plan", {}, {}};
  table.columns = {{"", "step", 0},
                   {"", "done at step", 0},
                   {"", "layers switched", 0},
                   {"", "rolled back", 0},
                   {"", "moves", 0},
                   {"", "bytes", 0},
                   {"", "seconds to plan", 3},
                   {"", "to move", 3},
                   {"", "predicted gain", 3},
                   {"", "realised gain", 3}};
  for (const Replan& replan : replans_of(events)) {
    std::string row =
        printable(valid_utf8(describe({.kind = replan.planned.kind, .text = replan.planned.text})));
    const auto number = [](int64_t n) { return std::optional(static_cast<double>(n)); };
    const bool applied = replan.planned.kind == Kind::kPlanned;
    const auto if_applied = [&](int64_t n) { return applied ? number(n) : std::nullopt; };
    table.rows.push_back(
        {std::move(row),
         {number(replan.planned.step),
          replan.committed ? number(replan.committed->step) : std::nullopt,
          if_applied(replan.switched), if_applied(replan.rolled_back), if_applied(replan.moves),
          if_applied(replan.bytes), replan.planned.seconds,
          replan.committed ? std::optional(replan.committed->seconds) : std::nullopt,
          replan.planned.predicted,
          replan.committed ? std::optional(replan.committed->realised) : std::nullopt}});
  }
  return table;
}

}  // namespace trimtab::cli
