// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/inspect_options.h"

#include <limits>

#include "cli/plan/inspect.h"

namespace trimtab::cli {

namespace {

constexpr const char* kInspectFooter = R"(
What it prints, for each layer. PAR, the peak-to-average rank load: the busiest rank's load over the
mean of all; of the loads summed over all steps, the mean of single steps, and the worst step. The
noise floor: the mean PAR of a step that chance alone leaves when all ranks expect the same load
(the expected maximum of independent Poisson counts, one a rank, over their mean); a placement fixed
before the step hardly gets below it. Drift: the part of the tokens that went to other experts than
in the window before. The hottest experts with their share of the tokens. With --cost, and with
--split time, also the mean PAR of a step in time and the time of its busiest rank (--json:
par_time, step_seconds). --split says how tokens are shared out over the replicas of --current.
Where FILE has tokens (top-k text, our JSON, TensorRT-LLM's raw statistics), also the copies of
tokens that a step sends from rank to rank and between nodes (--json: traffic).

Files. Loads in any format that docs/formats.md lists; what several ranks recorded of the same steps
is summed.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab inspect models/tiny-moe/trace.npy --ranks 4
  trimtab inspect stat.json --current expert_location.json --ranks 32 --window 200
  trimtab inspect rank0.csv rank1.csv --json
)";

}  // namespace

void add_inspect(Command& program, InspectOptions& options) {
  Command command = program.add("inspect", "Show how uneven recorded loads are");
  add_load_files(command, options.loads, "FILE");
  add_ranks(command, options.ranks, "Ranks that share the experts [8, or what --current says]");
  add_current(command, options.current, options.current_format);
  command
      .number("--window", options.window,
              "Steps of a window, for the drift [a quarter of the steps]")
      .between(1, std::numeric_limits<int>::max())
      .type("STEPS");
  add_loads_format(command, options.loads, "--from");
  add_sizes_of_loads(command, options.loads);
  add_serving(command, options.serving);
  add_nodes(command, options.wires);
  add_token_bytes(command, options.wires);
  add_report(command, options.report);
  add_json(command, options.json);
  command.footer(kInspectFooter);
  command.runs([&options] { inspect(options); });
}

}  // namespace trimtab::cli
