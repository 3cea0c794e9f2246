// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/report_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/output/text.h"

namespace trimtab::cli {

namespace {

std::string slots_text(const Placement& placement) {
  int least = placement.num_slots(), most = 0;
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    least = std::min(least, placement.slots_of_rank(rank));
    most = std::max(most, placement.slots_of_rank(rank));
  }
  const std::string each =
      least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  return fmt::format("{} of {} slots, {} replicas", placement.num_ranks(), each,
                     placement.num_slots() - placement.num_experts());
}

}  // namespace

void set_title(Report& report, const std::string& command, const std::string& file) {
  const std::string name = std::filesystem::path(file).filename().string();
  report.title = fmt::format("{}{}: {}", static_cast<char>(std::toupper(command[0])),
                             command.substr(1), printable(valid_utf8(name.empty() ? file : name)));
  report.made_by = fmt::format("trimtab {} {}", TRIMTAB_VERSION, command);
}

void add_loads_facts(Report& report, const LoadsOptions& options, const Recording& loads) {
  report.facts.push_back(
      {"Loads", fmt::format("{}{} ({})", printable(valid_utf8(options.files[0])),
                            options.files.size() == 1
                                ? ""
                                : fmt::format(" and {} more, summed", options.files.size() - 1),
                            name(loads.format))});
  const auto model = loads.metadata.find("model");
  if (model != loads.metadata.end())
    report.facts.push_back({"Model", printable(valid_utf8(model->second))});
  report.facts.push_back({"Steps", fmt::format("{}", loads.load.num_steps)});
  report.expert_load = expert_load_of(loads.load);
}

void add_sizes(Report& report, const std::vector<int>& layer_ids, const Placement& placement) {
  report.facts.push_back(
      {"Layers", fmt::format("{} of {} experts", placement.num_layers(), placement.num_experts())});
  report.facts.push_back({"Ranks", slots_text(placement)});
  report.layer_ids = layer_ids;
  report.num_experts = placement.num_experts();
}

Report report_on(const std::string& command, const LoadsOptions& options, const Recording& loads,
                 const Placement& placement) {
  Report report;
  set_title(report, command, options.files[0]);
  add_loads_facts(report, options, loads);
  add_sizes(report, loads.layer_ids, placement);
  return report;
}

void add_planner_facts(Report& report, const PlannerOptions& options, const Placement& current,
                       const std::string& name) {
  report.node_of_rank = topology_of(options.wires, current.num_ranks()).node_of_rank;
  report.facts.push_back({"Nodes", nodes_text(options.wires)});
  report.facts.push_back({name, options.current.empty() ? "experts in order, replicas behind"
                                                        : printable(valid_utf8(options.current))});
}

}  // namespace trimtab::cli
