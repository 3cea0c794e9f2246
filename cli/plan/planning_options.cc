// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/planning_options.h"

#include <limits>

#include "trimtab/recordings.h"

namespace trimtab::cli {

namespace {

std::vector<std::string> format_names(bool (*wanted)(const FileFormatInfo&)) {
  std::vector<std::string> names;
  for (const FileFormatInfo& one : file_formats()) {
    if (wanted(one)) names.emplace_back(one.name);
  }
  return names;
}

}  // namespace

std::vector<std::string> load_formats() {
  return format_names([](const FileFormatInfo& one) { return one.reads_loads; });
}

std::vector<std::string> placement_formats() {
  return format_names([](const FileFormatInfo& one) { return one.placements; });
}

std::vector<std::string> all_formats() {
  return format_names([](const FileFormatInfo&) { return true; });
}

void add_load_files(Command& command, LoadsOptions& loads, const std::string& name) {
  command.texts(name, loads.files, "Recorded loads; those of several ranks are summed")
      .required()
      .type("");
}

Option add_loads_format(Command& command, LoadsOptions& loads, const std::string& name) {
  return command.text(name, loads.format, "Format of the loads [detected]")
      .one_of(load_formats())
      .type("NAME");
}

std::vector<Option> add_sizes_of_loads(Command& command, LoadsOptions& loads) {
  return {command
              .number("--experts", loads.experts,
                      "Experts of a layer, where the file may leave some out")
              .between(1, kMostSizes),
          command
              .number("--tokens-per-step", loads.tokens_per_step,
                      "Tokens of a step, for top-k text [each sample is a step]")
              .between(1, std::numeric_limits<int>::max()),
          command
              .text("--phase", loads.phase,
                    "Only steps that read prompts, or those that do not: prefill or decode [all]")
              .one_of({"prefill", "decode"})
              .type("NAME"),
          command
              .text("--recorded-under", loads.recorded_under,
                    "The placement that was in use, for loads of vllm-ascend, which count slots")
              .type("FILE")};
}

Option add_ranks(Command& command, int& ranks, const std::string& about) {
  return command.number("--ranks", ranks, about).between(1, kMostSizes);
}

void add_current(Command& command, std::string& file, std::string& format) {
  Option current = command.text("--current", file, "The placement in use");
  current.type("FILE");
  command.text("--current-format", format, "Its format [detected]")
      .one_of(placement_formats())
      .type("NAME")
      .needs(current);
}

void add_report(Command& command, std::string& file) {
  command.text("--report", file, "Writes a page with drawings, for a browser").type("FILE.html");
}

void add_json(Command& command, bool& json) {
  command.flag("--json", json, "One JSON object on standard output instead of text");
}

}  // namespace trimtab::cli
