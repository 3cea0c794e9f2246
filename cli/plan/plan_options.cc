// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/plan_options.h"

#include "cli/plan/plan.h"

namespace trimtab::cli {

namespace {

constexpr const char* kPlanFooter = R"(
What it does. Reads recorded loads and the placement they were recorded under, plans a better
placement, and writes it in the format of your engine. Without --current it starts from the experts
in order, replicas behind, as vLLM and its relatives do. Ranks keep their slots; an expert that
stays on its rank stays in its slot.

What it prints. For each layer PAR (the busiest rank's load over the mean of all; 1 is level) before
and after, of the summed loads and as the mean of single steps, with the upper end of its 95 %
interval; a proved lower bound for placements with these slots in which no rank holds an expert
twice; and the expert weights that have to move. --json: one object, PARs as the mean over the
layers: policy, layers, par_before, par_after, par_step_before, par_step_after,
par_step_after_high, lower_bound, lower_bound_split (for every placement with these slots, where
tokens are split over replicas freely), moves_per_layer, moves, receive_peak (the most that one
rank receives in a layer), duplicates, plan_seconds. With --cost, and with --split time, also
par_time_before, par_time_after (mean PAR of a step in time), step_seconds_before and
step_seconds_after (the time of a step's busiest rank in a layer).

Traffic. Where LOADS has tokens (top-k text, our JSON, TensorRT-LLM's raw statistics), also the
copies of tokens that a step sends from rank to rank and between nodes, before and after; --json:
node_copies_before and node_copies_after (of a token, mean over the layers), traffic, and with
prices copies_cost_before and copies_cost_after. With several nodes, or prices by --topology, trim
seeks the cheapest copies among plans whose peaks are within --wire-slack of its best.

--curve adds what plans with fewer or more moves reach: moves over all layers, bytes where
--expert-bytes is given, PAR of the window and of a step; in --json the list curve of moves, bytes,
par, par_step (and step_seconds with --cost). A page of --report then draws it. Without limits, this
plan is what the policy takes; with --max-bytes, moves go where they gain most, over all
layers.

--split names the rule that will share tokens out over replicas, for which the plan is made and
measured; equal: each replica gets the same part, fractions of tokens included. time needs --cost,
or takes rows for costs.

Policies. trim (ours), deepseek, swift, flashlb, optimal (small layers only), static, round_robin,
random.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab plan models/tiny-moe/trace.npy --ranks 4 --slots 9 -o placement.json
  trimtab plan stat.json --ranks 32 --slots 9 --nodes 4 --format sglang -o expert_location.json \
    --report plan.html
  trimtab plan stats/ --ranks 8 --slots 36 --format trtllm -o placement.yaml
  trimtab plan load.npy --current expert_map.json --max-moves 8 --format vllm-ascend \
    -o new_expert_map.json
)";

}  // namespace

void add_plan(Command& program, PlanOptions& options) {
  Command command = program.add("plan", "Plan a better placement from recorded loads");
  add_load_files(command, options.loads, "LOADS");
  add_planner(command, options);
  add_token_bytes(command, options.wires);
  command
      .number("--wire-slack", options.wire_slack,
              "Part by which peak loads may be above the best for less traffic between nodes, or "
              "cheaper copies, for trim with tokens in LOADS and several --nodes or --topology")
      .between_reals(0.0, 1e6)
      .shows_default()
      .type("PART");
  command.text("--policy", options.policy, "How to plan (see below)")
      .one_of({policy_names().begin(), policy_names().end()})
      .type("NAME")
      .shows_default();
  command.text("-o,--out", options.out, "Writes the placement; without it nothing is written")
      .type("FILE");
  command
      .text("--format", options.format,
            "Format of that file: json, npy, sglang, trtllm, vllm or vllm-ascend")
      .one_of(placement_formats())
      .type("NAME")
      .shows_default();
  add_loads_format(command, options.loads, "--from");
  add_sizes_of_loads(command, options.loads);
  command.flag("--curve", options.curve,
               "Also PAR against moves: what other budgets would reach; takes longer");
  add_report(command, options.report);
  add_json(command, options.json);
  command.footer(kPlanFooter);
  command.runs([&options, command] {
    if (command.given("--format") && options.out.empty())
      throw UsageError("--format: it has no effect without --out");
    check_planner(options, {options.policy});
    plan(options);
  });
}

}  // namespace trimtab::cli
