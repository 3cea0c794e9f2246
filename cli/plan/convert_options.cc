// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/convert_options.h"

#include "cli/plan/convert.h"

namespace trimtab::cli {

namespace {

constexpr const char* kConvertFooter = R"(
What it does. Loads to loads, a placement to a placement. Formats are detected; the one to write
follows from the end of its name (.json ours, .npy, .csv, .yaml trtllm, .jsonl vllm) unless --to
names it. docs/formats.md describes them.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab convert models/tiny-moe/trace.npy trace.csv
  trimtab convert placement.json expert_map.json --to vllm-ascend
  trimtab convert phy2log.npy placement.yaml --kind placement --ranks 8
)";

}  // namespace

void add_convert(Command& program, ConvertOptions& options) {
  Command command = program.add("convert", "Rewrite loads or a placement in another format");
  options.in.files.resize(1);
  command.text("IN", options.in.files[0], "Loads or a placement").required().type("");
  command.text("OUT", options.out, "The file to write (trtllm loads: a folder)")
      .required()
      .type("");
  command.text("--from", options.in.format, "Format of IN [detected]")
      .one_of(all_formats())
      .type("NAME");
  command.text("--to", options.to, "Format of OUT [by the end of its name]")
      .one_of(all_formats())
      .type("NAME");
  command
      .text("--kind", options.kind,
            "loads or placement, where IN may be either: a .npy of two dimensions")
      .one_of({"loads", "placement"})
      .type("NAME");
  command
      .number("--experts-per-token", options.experts_per_token,
              "Experts that the router picks for a token; trtllm loads need it")
      .between(1, kMostSizes);
  add_ranks(command, options.ranks,
            "Ranks of a placement, where IN does not say it: all but json and vllm-ascend; of the "
            "page of loads [8]");
  add_sizes_of_loads(command, options.in);
  add_report(command, options.report);
  add_json(command, options.json);
  command.footer(kConvertFooter);
  command.runs([&options] { convert(options); });
}

}  // namespace trimtab::cli
