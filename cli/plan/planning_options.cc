// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/planning_options.h"

#include <string_view>

#include "cli/output/validators.h"

namespace trimtab::cli {

namespace {

constexpr int kMost = 1 << 20;  // of ranks, slots, experts: as in the formats

constexpr const char* kInspectFooter = R"(
What it prints, for each layer. PAR, the peak-to-average rank load: the busiest rank's load over the mean of all; of
the loads summed over all steps, the mean of single steps, and the worst step. The noise floor: the mean PAR of a step
that chance alone leaves when all ranks expect the same load (the expected maximum of independent Poisson counts, one
a rank, over their mean); a placement fixed before the step hardly gets below it. Drift: the part of the tokens that
went to other experts than in the window before. The hottest experts with their share of the tokens.

Files. Loads in any format that docs/formats.md lists; what several ranks recorded of the same steps is summed.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab inspect models/tiny-moe/trace.npy --ranks 4
  trimtab inspect stat.json --current expert_location.json --ranks 32 --window 200
  trimtab inspect rank0.csv rank1.csv --json
)";

constexpr const char* kPlanFooter = R"(
What it does. Reads recorded loads and the placement they were recorded under, plans a better placement, and writes it
in the format of your engine. Without --current it starts from the experts in order, replicas behind, as vLLM and its
relatives do. Ranks keep their slots; an expert that stays on its rank stays in its slot.

What it prints. For each layer PAR (the busiest rank's load over the mean of all; 1 is level) before and after, of the
summed loads and as the mean of single steps, with the upper end of its 95 % interval; the proved lower bound for these
slots; and the expert weights that have to move. --json: one object, PARs as the mean over the layers: policy, layers,
par_before, par_after, par_step_before, par_step_after, par_step_after_high, lower_bound, lower_bound_split (where tokens
are split over replicas freely), moves_per_layer, moves, receive_peak (the most that one rank receives in a layer),
duplicates, plan_seconds.

Policies. trim (ours), deepseek, swift, flashlb, optimal (small layers only), static, round_robin, random.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab plan models/tiny-moe/trace.npy --ranks 4 --slots 9 -o placement.json
  trimtab plan stat.json --ranks 32 --slots 9 --nodes 4 --format sglang -o expert_location.json --report plan.html
  trimtab plan stats/ --ranks 8 --slots 36 --format trtllm -o placement.yaml
  trimtab plan load.npy --current expert_map.json --max-moves 8 --format vllm-ascend -o new_expert_map.json
)";

constexpr const char* kCheckFooter = R"(
What it does. Reads a placement and refuses, with the place in the file, what an engine could not load: ids out of
range, experts without a slot, lists of the wrong length. With --loads it also says how level the ranks would be: PAR
is the busiest rank's load over the mean of all, every expert's tokens shared equally among its copies.

Exit status: 0 valid, 1 not valid or it failed, 2 wrong usage.

Examples
  trimtab check placement.json --loads models/tiny-moe/trace.npy
  trimtab check expert_location.json --ranks 32 --report placement.html
)";

constexpr const char* kConvertFooter = R"(
What it does. Loads to loads, a placement to a placement. Formats are detected; the one to write follows from the end
of its name (.json ours, .npy, .csv, .yaml trtllm, .jsonl vllm) unless --to names it. docs/formats.md describes them.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab convert models/tiny-moe/trace.npy trace.csv
  trimtab convert placement.json expert_map.json --to vllm-ascend
  trimtab convert phy2log.npy placement.yaml --kind placement --ranks 8
)";

constexpr const char* kReplayFooter = R"(
What it does. Cuts the recording into windows. Each policy plans on a window, starting from its own last placement and
with what it remembers, and is measured on the next window, which it has not seen. The first plan starts from --current,
or from the experts in order, replicas behind. Steps that do not fill a window are left out.

--split says how the tokens of a step reach the replicas of their expert when the next window is measured. equal: each
replica gets the same part, fractions of tokens included, as plans assume. static, round_robin, split: whole tokens,
those of a step as one batch that comes from all ranks equally; static: a sending rank uses one replica; round_robin:
the replicas take turns; split: so that the busiest rank has as few as possible.

--json: {policies: {name: {par_next_mean, par_next_worst, moves_per_layer_per_replan, first_plan_moves,
plan_seconds_per_replan}}}. par_next_mean: the PAR of a step (the busiest rank's load over the mean of all; 1 is
level), mean over steps, windows and layers; par_next_worst: of the worst step.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab replay models/tiny-moe/trace.npy --ranks 4 --slots 9 --window 16 --policies trim,deepseek,static
  trimtab replay trace.topk.txt.xz --tokens-per-step 1024 --ranks 8 --slots 9 --window 1 --policies trim --split split
)";

std::vector<std::string> format_names(bool (*wanted)(const FileFormatInfo&)) {
  std::vector<std::string> names;
  for (const FileFormatInfo& one : file_formats()) {
    if (wanted(one)) names.emplace_back(one.name);
  }
  return names;
}

CLI::Validator a_format_of_loads() {
  return one_of(format_names([](const FileFormatInfo& one) { return one.reads_loads; }));
}
CLI::Validator a_format_of_placements() {
  return one_of(format_names([](const FileFormatInfo& one) { return one.placements; }));
}
CLI::Validator a_policy() {
  return one_of({policy_names().begin(), policy_names().end()});
}
CLI::Validator any_format() {
  return one_of(format_names([](const FileFormatInfo&) { return true; }));
}

void add_file(CLI::App& command, const char* name, std::string& file, const char* about) {
  command.add_option(name, file, about)->required()->check(is_given())->type_name("");
}

void add_load_files(CLI::App& command, LoadsOptions& loads, const char* name) {
  command.add_option(name, loads.files, "Recorded loads; those of several ranks are summed")
      ->required()
      ->check(is_given())
      ->type_name("");
}

void add_sizes_of_loads(CLI::App& command, LoadsOptions& loads) {
  command
      .add_option("--experts", loads.experts,
                  "Experts of a layer, where the file may leave some out")
      ->check(one_to(kMost))
      ->type_name("N");
  command.add_option("--tokens-per-step", loads.tokens_per_step, "Of top-k text [a step a sample]")
      ->check(one_to(std::numeric_limits<int>::max()))
      ->type_name("N");
}

void add_loads_format(CLI::App& command, LoadsOptions& loads, const char* name) {
  command.add_option(name, loads.format, "Format of the loads [detected]")
      ->check(a_format_of_loads())
      ->type_name("NAME");
}

CLI::Option* add_ranks(CLI::App& command, int& ranks, const char* about) {
  return command.add_option("--ranks", ranks, about)->check(one_to(kMost))->type_name("N");
}

CLI::Option* add_slots(CLI::App& command, int& slots) {
  return command
      .add_option("--slots", slots, "Experts, replicas included, that each rank holds in a layer")
      ->check(one_to(kMost))
      ->type_name("N");
}

void add_current(CLI::App& command, std::string& current, std::string& format) {
  CLI::Option* file = command.add_option("--current", current, "The placement in use")
                          ->check(is_given())
                          ->type_name("FILE");
  command.add_option("--current-format", format, "Its format [detected]")
      ->check(a_format_of_placements())
      ->type_name("NAME")
      ->needs(file);
}

void add_json(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "One JSON object on standard output instead of text");
}

void add_report(CLI::App& command, std::string& report) {
  command.add_option("--report", report, "Writes a page with drawings, for a browser")
      ->check(is_given())
      ->type_name("FILE.html");
}

// What PlannerOptions hold.
void add_planner(CLI::App& command, PlannerOptions& options) {
  add_ranks(command, options.ranks, "Ranks that share the experts");
  add_slots(command, options.slots);
  add_current(command, options.current, options.current_format);
  command.add_option("--nodes", options.nodes, "Nodes, equally many ranks on each in order")
      ->check(one_to(kMost))
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--groups", options.groups,
                  "Groups of experts of the model's router, for deepseek")
      ->check(one_to(kMost))
      ->type_name("N")
      ->capture_default_str();
  const auto limit = [&](const char* name, int64_t& value, const char* about) {
    return command.add_option(name, value, about)->check(zero_or_more())->type_name("N");
  };
  limit("--max-moves", options.limits.max_moves_per_layer,
        "Most expert weights to move in a layer");
  limit("--max-receive", options.limits.max_receive_per_rank,
        "Most expert weights that one rank receives in a layer");
  limit("--max-layers", options.limits.max_layers,
        "Most layers to change; those that gain most go first");
  CLI::Option* expert_bytes =
      command
          .add_option("--expert-bytes", options.expert_bytes,
                      "Bytes of one expert's weights in one layer")
          ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()).description(""))
          ->type_name("N");
  limit("--max-bytes", options.limits.max_bytes, "Most bytes to move, over all layers")
      ->needs(expert_bytes);
  command
      .add_option("--preset", options.preset, "Effort of trim: fast, balanced or deep [balanced]")
      ->check(one_of({"fast", "balanced", "deep"}))
      ->type_name("NAME");
  command
      .add_option("--time-budget", options.time_budget_s,
                  "Seconds trim may search for a plan, about [no clock]")
      ->check(CLI::Range(1e-6, 1e6).description(""))
      ->type_name("S");
  command
      .add_option("--move-price", options.move_price,
                  "PAR that each move must gain its layer, for trim [its own]")
      ->check(CLI::Range(0.0, 1e6).description(""))
      ->type_name("PAR");
  command.add_flag_callback(
      "--no-keep-slots", [&options] { options.keep_slots = false; },
      "Slots in the order of deepseek's published code; else an expert that stays on its rank "
      "stays in its slot");
}

void require_sizes(const PlannerOptions& options) {
  if (!options.current.empty() || (options.ranks > 0 && options.slots > 0)) return;
  throw CLI::RequiredError(options.ranks == 0 ? "--ranks (or --current)"
                                              : "--slots (or --current)");
}

}  // namespace

void add_inspect(CLI::App& app, InspectOptions& options) {
  CLI::App* command = app.add_subcommand("inspect", "Show how uneven recorded loads are");
  add_load_files(*command, options.loads, "FILE");
  add_ranks(*command, options.ranks, "Ranks that share the experts [8, or what --current says]");
  add_current(*command, options.current, options.current_format);
  command
      ->add_option("--window", options.window,
                   "Steps of a window, for the drift [a quarter of the steps]")
      ->check(one_to(std::numeric_limits<int>::max()))
      ->type_name("STEPS");
  add_loads_format(*command, options.loads, "--from");
  add_sizes_of_loads(*command, options.loads);
  add_report(*command, options.report);
  add_json(*command, options.json);
  command->footer(kInspectFooter);
  command->callback([&options] { inspect(options); });
}

void add_plan(CLI::App& app, PlanOptions& options) {
  CLI::App* command = app.add_subcommand("plan", "Plan a better placement from recorded loads");
  add_load_files(*command, options.loads, "LOADS");
  add_planner(*command, options);
  command->add_option("--policy", options.policy, "How to plan (see below)")
      ->check(a_policy())
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("-o,--out", options.out, "Writes the placement; without it nothing is written")
      ->check(is_given())
      ->type_name("FILE");
  command
      ->add_option("--format", options.format,
                   "Of that file: json, npy, sglang, trtllm, vllm or vllm-ascend")
      ->check(a_format_of_placements())
      ->type_name("NAME")
      ->capture_default_str();
  add_loads_format(*command, options.loads, "--from");
  add_sizes_of_loads(*command, options.loads);
  add_report(*command, options.report);
  add_json(*command, options.json);
  command->footer(kPlanFooter);
  command->callback([&options] {
    require_sizes(options);
    plan(options);
  });
}

void add_check(CLI::App& app, CheckOptions& options) {
  CLI::App* command =
      app.add_subcommand("check", "Validate a placement, and say how level ranks are under it");
  add_file(*command, "PLACEMENT", options.placement, "File of a placement");
  add_ranks(*command, options.ranks,
            "Ranks, where the file does not say it: all but json and vllm-ascend");
  command->add_option("--from", options.format, "Format of the placement [detected]")
      ->check(a_format_of_placements())
      ->type_name("NAME");
  CLI::Option* loads =
      command->add_option("--loads", options.loads.files, "Recorded loads to measure it with")
          ->check(is_given())
          ->type_name("FILE");
  command->add_option("--loads-format", options.loads.format, "Their format [detected]")
      ->check(a_format_of_loads())
      ->type_name("NAME")
      ->needs(loads);
  add_sizes_of_loads(*command, options.loads);
  add_report(*command, options.report);
  add_json(*command, options.json);
  command->footer(kCheckFooter);
  command->callback([&options] { check(options); });
}

void add_convert(CLI::App& app, ConvertOptions& options) {
  CLI::App* command =
      app.add_subcommand("convert", "Rewrite loads or a placement in another format");
  options.in.files.resize(1);
  add_file(*command, "IN", options.in.files[0], "Loads or a placement");
  add_file(*command, "OUT", options.out, "The file to write (trtllm loads: a folder)");
  command->add_option("--from", options.in.format, "Format of IN [detected]")
      ->check(any_format())
      ->type_name("NAME");
  command->add_option("--to", options.to, "Format of OUT [by the end of its name]")
      ->check(any_format())
      ->type_name("NAME");
  command
      ->add_option("--kind", options.kind,
                   "loads or placement, where IN may be either: a .npy of two dimensions")
      ->check(one_of({"loads", "placement"}))
      ->type_name("NAME");
  command
      ->add_option("--experts-per-token", options.experts_per_token,
                   "Of the router, for trtllm loads")
      ->check(one_to(kMost))
      ->type_name("N");
  add_ranks(*command, options.ranks,
            "Ranks of a placement, where IN does not say it: all but json and vllm-ascend; of the "
            "page of loads [8]");
  add_sizes_of_loads(*command, options.in);
  add_report(*command, options.report);
  add_json(*command, options.json);
  command->footer(kConvertFooter);
  command->callback([&options] { convert(options); });
}

void add_replay(CLI::App& app, ReplayOptions& options) {
  CLI::App* command =
      app.add_subcommand("replay", "Compare policies: plan on each window, measure on the next");
  add_load_files(*command, options.loads, "LOADS");
  add_planner(*command, options);
  command->add_option("--window", options.window, "Steps from one plan to the next")
      ->required()
      ->check(one_to(std::numeric_limits<int>::max()))
      ->type_name("STEPS");
  command->add_option("--policies", options.policies, "Names as of plan --policy, commas between")
      ->required()
      ->delimiter(',')
      ->check(a_policy())
      ->type_name("NAMES");
  command
      ->add_option(
          "--split", options.split,
          "How a step's tokens are shared out over replicas: equal, static, round_robin or split")
      ->check(one_of({"equal", "static", "round_robin", "split"}))
      ->type_name("NAME")
      ->capture_default_str();
  add_loads_format(*command, options.loads, "--from");
  add_sizes_of_loads(*command, options.loads);
  add_report(*command, options.report);
  add_json(*command, options.json);
  command->footer(kReplayFooter);
  command->callback([&options] {
    require_sizes(options);
    replay(options);
  });
}

}  // namespace trimtab::cli
