// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/plan/serving_keys.h"

namespace trimtab::cli {

namespace {

using Json = nlohmann::ordered_json;

std::vector<HotExpert> hottest_experts(const Load& load, int layer) {
  constexpr size_t kShown = 3;
  const std::vector<int64_t> counts = sum_of_steps(load, layer, {0, load.num_steps});
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<int> order(counts.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return std::pair(-counts[a], a) < std::pair(-counts[b], b); });
  order.resize(std::min(order.size(), kShown));
  std::vector<HotExpert> hottest;
  for (const int expert : order) {
    const auto count = static_cast<double>(counts[expert]);
    hottest.push_back({expert, count / static_cast<double>(std::max<int64_t>(total, 1))});
  }
  return hottest;
}

std::string json_report(const InspectOptions& options, const Recording& loads,
                        const Inspection& result) {
  Json files = Json::array();
  for (const std::string& file : options.loads.files) files.push_back(valid_utf8(file));
  Json layers = Json::array();
  for (const InspectedLayer& layer : result.layers) {
    Json hottest = Json::array();
    for (const HotExpert& hot : layer.hottest)
      hottest.push_back({{"expert", hot.expert}, {"share", hot.share}});
    layers.push_back({{"layer", layer.id},
                      {"par", layer.level.par},
                      {"par_step_mean", layer.level.par_step_mean},
                      {"par_step_worst", layer.level.par_step_worst},
                      {"worst_step", loads.step_ids[layer.level.worst_step]},
                      {"noise_floor", layer.noise_floor},
                      {"drift_mean", layer.drift ? Json(layer.drift->mean) : Json()},
                      {"drift_worst", layer.drift ? Json(layer.drift->worst) : Json()},
                      {"hottest", std::move(hottest)}});
    if (!result.served.cost) continue;
    layers.back()["par_time"] = layer.par_time;
    layers.back()["step_seconds"] = layer.step_seconds;
  }
  Json report = {{"files", std::move(files)},
                 {"format", result.format},
                 {"steps", loads.load.num_steps},
                 {"layers", loads.load.num_layers},
                 {"experts", loads.load.num_experts},
                 {"tokens", result.tokens},
                 {"ranks", result.ranks},
                 {"window", result.window},
                 {"per_layer", std::move(layers)}};
  add_serving_keys(options.serving, result.served, report);
  if (result.traffic) report["traffic"] = traffic_json(*result.traffic);
  return report.dump(1) + "\n";
}

void append_layers(std::string& to, const Recording& loads, const Inspection& result) {
  to +=
      "layer     PAR  mean step  noise floor  worst step (number)   drift  hottest experts "
      "(share)\n";
  const auto out = std::back_inserter(to);
  for (const InspectedLayer& layer : result.layers) {
    fmt::format_to(out, "{:5} {:7.4f} {:10.4f} {:12.4f} {:11.4f} {:8} {:>7}  ", layer.id,
                   layer.level.par, layer.level.par_step_mean, layer.noise_floor,
                   layer.level.par_step_worst,
                   fmt::format("({})", loads.step_ids[layer.level.worst_step]),
                   layer.drift ? fmt::format("{:.1f} %", 100 * layer.drift->mean) : "-");
    for (const HotExpert& hot : layer.hottest)
      fmt::format_to(out, "{} ({:.1f} %) ", hot.expert, 100 * hot.share);
    to.back() = '\n';
  }
}

void append_times(std::string& to, const Inspection& result) {
  to += "\nlayer  PAR of a step in time  busiest rank, microseconds\n";
  for (const InspectedLayer& layer : result.layers) {
    fmt::format_to(std::back_inserter(to), "{:5} {:22.4f} {:27.3f}\n", layer.id, layer.par_time,
                   1e6 * layer.step_seconds);
  }
}

std::string text_report(const InspectOptions& options, const Recording& loads,
                        const Inspection& result) {
  std::string report =
      fmt::format("{}{}: {}, {} steps x {} layers x {} experts, {} tokens routed\n",
                  printable(valid_utf8(options.loads.files[0])),
                  options.loads.files.size() == 1
                      ? ""
                      : fmt::format(" and {} more, summed", options.loads.files.size() - 1),
                  result.format, loads.load.num_steps, loads.load.num_layers,
                  loads.load.num_experts, result.tokens);
  fmt::format_to(std::back_inserter(report),
                 "On {} ranks, {}; drift between windows of {} steps\n\n", result.ranks,
                 options.current.empty() ? "experts in order"
                                         : "placed as in " + printable(valid_utf8(options.current)),
                 result.window);
  append_layers(report, loads, result);
  if (result.served.cost) append_times(report, result);
  report += result.traffic ? traffic_text(*result.traffic) : no_traffic_text(options.wires, &loads);
  report +=
      "\nPAR: peak-to-average rank load of the loads summed over all steps; 1 is level. Noise "
      "floor: the mean PAR of "
      "a\n"
      "step that chance alone leaves when all ranks expect the same load (independent Poisson "
      "counts). Drift: the "
      "part\n"
      "of the tokens that went to other experts than in the window before.\n";
  if (options.serving.split != "equal" || result.served.cost)
    report += serving_text(options.serving, result.served) + "\n";
  return report;
}

}  // namespace

PlacementFile inspected_placement(const InspectOptions& options, const Recording& loads) {
  if (!options.current.empty()) {
    return read_placement_for(options.current, options.current_format, options.ranks, &loads);
  }
  const int ranks = options.ranks > 0 ? options.ranks : InspectOptions::kDefaultRanks;
  return {
      Placement::linear(loads.load.num_layers, loads.load.num_experts, ranks), loads.layer_ids, {}};
}

Inspection inspect_loads(const InspectOptions& options, Recording& loads,
                         const PlacementFile& file) {
  const Load& load = loads.load;
  Inspection result;
  result.format = name(loads.format);
  result.served = read_serving(options.serving);
  const Serving serving = result.served.serving();
  result.ranks = file.placement.num_ranks();
  result.window = options.window > 0 ? options.window : std::max<int64_t>(load.num_steps / 4, 1);
  result.tokens = std::accumulate(load.counts.begin(), load.counts.end(), int64_t{0});
  const std::vector<int> ids = common_layer_ids(loads, file, options.current);
  for (int layer = 0; layer < load.num_layers; ++layer) {
    InspectedLayer one;
    one.id = ids[layer];
    one.level = levelness(rank_loads(file.placement, load, layer, serving), 0);
    if (result.served.cost) {
      const RankLoads times = rank_times(file.placement, load, layer, serving);
      one.par_time = mean_of(step_pars(times, 0));
      one.step_seconds = mean_step_peak(times, 0);
    }
    one.noise_floor = noise_floor(load, layer, result.ranks);
    if (load.num_steps / 2 >= result.window) one.drift = drift(load, layer, result.window);
    one.hottest = hottest_experts(load, layer);
    result.layers.push_back(std::move(one));
  }
  result.topology = topology_of(options.wires, result.ranks);
  result.traffic = step_traffic(loads, tokens_of(loads, result.ranks), options.wires,
                                result.topology, {{"", file.placement}});
  return result;
}

void inspect(const InspectOptions& options) {
  check_writable("--report", options.report);
  Recording loads = read_loads(options.loads);
  const PlacementFile file = inspected_placement(options, loads);
  const Inspection result = inspect_loads(options, loads, file);
  if (!options.report.empty())
    write_report(options.report, inspect_page(options, loads, file.placement, result));
  print_report(options.json ? json_report(options, loads, result)
                            : text_report(options, loads, result));
}

}  // namespace trimtab::cli
