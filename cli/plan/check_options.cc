// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/check_options.h"

#include "cli/plan/check.h"

namespace trimtab::cli {

namespace {

constexpr const char* kCheckFooter = R"(
What it does. Reads a placement and refuses, with the place in the file, what an engine could not
load: ids out of range, experts without a slot, lists of the wrong length. With --loads it also says
how level the ranks would be: PAR is the busiest rank's load over the mean of all, tokens shared out
over replicas as --split says. With --cost, and with --split time, the same in time, and how long a
step waits for its busiest rank in each layer. Where the loads have tokens, also the copies of
tokens that a step sends from rank to rank and between nodes (--json: traffic). With --node-rules a
placement that breaks one of them is not valid.

Exit status: 0 valid, 1 not valid or it failed, 2 wrong usage.

Examples
  trimtab check placement.json --loads models/tiny-moe/trace.npy
  trimtab check expert_location.json --ranks 32 --report placement.html
)";

}  // namespace

void add_check(Command& program, CheckOptions& options) {
  Command command =
      program.add("check", "Validate a placement, and say how level ranks are under it");
  command.text("PLACEMENT", options.placement, "File of a placement").required().type("");
  add_ranks(command, options.ranks,
            "Ranks, where the file does not say it: all but json and vllm-ascend");
  command.text("--from", options.format, "Format of the placement [detected]")
      .one_of(placement_formats())
      .type("NAME");
  Option loads = command.texts("--loads", options.loads.files, "Recorded loads to measure it with");
  loads.type("FILE");
  add_loads_format(command, options.loads, "--loads-format").needs(loads);
  for (Option size : add_sizes_of_loads(command, options.loads)) size.needs(loads);
  add_serving(command, options.serving);
  add_nodes(command, options.wires);
  add_node_rules(command, options.wires, ", for --node-rules groups");
  add_token_bytes(command, options.wires);
  add_report(command, options.report);
  add_json(command, options.json);
  command.footer(kCheckFooter);
  command.runs([&options, command] {
    for (const char* serving : {"--split", "--cost", "--token-bytes"}) {
      if (command.given(serving) && options.loads.files.empty())
        throw UsageError(std::string(serving) + ": it has no effect without --loads");
    }
    for (const char* nodes : {"--nodes", "--topology"}) {
      if (command.given(nodes) && options.loads.files.empty() && options.report.empty() &&
          options.wires.rules.empty()) {
        throw UsageError(std::string(nodes) +
                         ": it has no effect without --loads, --report or --node-rules");
      }
    }
    if (command.given("--node-rules") && !command.given("--nodes") && !command.given("--topology"))
      throw UsageError("--node-rules: it has no effect without --nodes or --topology");
    if (command.given("--groups") && !parse_node_rules(options.wires.rules).groups_on_nodes)
      throw UsageError("--groups: it has no effect without --node-rules groups");
    check(options);
  });
}

}  // namespace trimtab::cli
