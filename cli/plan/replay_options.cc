// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/replay_options.h"

#include <limits>
#include <string_view>

#include "cli/plan/replay.h"

namespace trimtab::cli {

namespace {

constexpr const char* kReplayFooter = R"(
What it does. Cuts the recording into windows. Each policy plans on a window, starting from its own
last placement and with what it remembers, and is measured on the next window, which it has not
seen. The first plan starts from --current, or from the experts in order, replicas behind. Steps
that do not fill a window are left out.

--split says how the tokens of a step reach the replicas of their expert: plans are made for it, and
the next window is measured with it. equal: each replica gets the same part, fractions of tokens
included. static, round_robin, split, time: whole tokens, those of a step as one batch that comes
from all ranks equally; static: a sending rank uses one replica; round_robin: the replicas take
turns; split: so that the busiest rank has as few as possible; time: so that it is done as early as
possible by --cost, without which an expert takes as long as it has rows.

--json: {window, policies: {name: {par_next_mean, par_next_worst, moves_per_layer_per_replan,
first_plan_moves, plan_seconds_per_replan}}}. par_next_mean: the PAR of a step (the busiest rank's
load over the mean of all; 1 is level), mean over steps, windows and layers; par_next_worst: of the
worst step. With --cost, and with --split time, also par_time_next_mean, the PAR in time, and
step_seconds_next_mean, the time of a step's busiest rank, all layers together; and for the whole
split and cost.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab replay models/tiny-moe/trace.npy --ranks 4 --slots 9 --window 16 \
    --policies trim,deepseek,static
  trimtab replay trace.topk.txt.xz --tokens-per-step 1024 --ranks 8 --slots 9 --window 1 \
    --policies trim --split split
)";

// "all" stands for every policy that plans layers of any size.
std::vector<std::string> without_all(const std::vector<std::string>& names) {
  std::vector<std::string> policies;
  for (const std::string& name : names) {
    if (name != "all") {
      policies.push_back(name);
      continue;
    }
    for (const std::string_view policy : policy_names()) {
      if (policy != "optimal") policies.emplace_back(policy);
    }
  }
  return policies;
}

}  // namespace

void add_replay(Command& program, ReplayOptions& options) {
  Command command =
      program.add("replay", "Compare policies: plan on each window, measure on the next");
  add_load_files(command, options.loads, "LOADS");
  add_planner(command, options);
  command
      .number("--window", options.window,
              "Steps from one plan to the next [an eighth of the recording]")
      .between(1, std::numeric_limits<int>::max())
      .type("STEPS");
  std::vector<std::string> policies(policy_names().begin(), policy_names().end());
  policies.emplace_back("all");
  command
      .list("--policies", options.policies,
            "Names as of plan --policy, commas between; all: every one but optimal, which is for "
            "small "
            "layers only")
      .required()
      .one_of(std::move(policies))
      .type("NAMES");
  add_loads_format(command, options.loads, "--from");
  add_sizes_of_loads(command, options.loads);
  add_report(command, options.report);
  add_json(command, options.json);
  command.footer(kReplayFooter);
  command.runs([&options] {
    options.policies = without_all(options.policies);
    check_planner(options, options.policies);
    replay(options);
  });
}

}  // namespace trimtab::cli
