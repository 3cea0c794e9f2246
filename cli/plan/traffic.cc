// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/traffic.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "trimtab/table.h"

namespace trimtab::cli {

namespace {

using Json = nlohmann::ordered_json;

// One sum over the copies of a step.
struct Sum {
  const char* key;
  const char* label;
  double (*of)(const StepTraffic::State&);
};

constexpr std::array kSums = {
    Sum{"rank_copies_between_ranks", "to other ranks, a copy for each rank (packed)",
        [](const StepTraffic::State& state) { return state.copies.between_ranks(); }},
    Sum{"rank_copies_between_nodes", "  of these to other nodes",
        [](const StepTraffic::State& state) { return state.rank_copies_between_nodes; }},
    Sum{"node_copies_between_nodes", "to other nodes, a copy for each node (hybrid)",
        [](const StepTraffic::State& state) { return state.copies.between_nodes(); }},
    Sum{"picks_between_nodes", "to other nodes, a row for each pick (all_to_all)",
        [](const StepTraffic::State& state) { return state.copies.picks_between_nodes(); }}};

double tokens_per_step(const Load& load, int top_k) {
  const auto picks = std::accumulate(load.counts.begin(), load.counts.end(), 0.0);
  return picks / static_cast<double>(load.num_steps) / load.num_layers / top_k;
}

Json matrix_json(const std::vector<double>& values, int side) {
  constexpr int kMostRanks = 256;
  if (side > kMostRanks) return nullptr;
  const Table rows(values, side);
  Json matrix = Json::array();
  for (int64_t r = 0; r < rows.rows(); ++r)
    matrix.push_back(std::vector<double>(rows[r].begin(), rows[r].end()));
  return matrix;
}

void add_state(const StepTraffic::State& state, bool has_prices, Json& to) {
  for (const Sum& sum : kSums) to[sum.key] = sum.of(state);
  if (has_prices) to["copies_cost"] = state.cost;
  to["rank_copies"] = matrix_json(state.copies.rank_copies, state.copies.num_ranks);
  to["node_copies"] = matrix_json(state.copies.node_copies, state.copies.num_nodes);
}

std::string sources_text(const StepTraffic& traffic) {
  return traffic.sources_recorded
             ? "the recording says from which rank"
             : "every rank sends the same part of each, since the recording does not say from "
               "which rank";
}

void append_matrix(std::string& to, const StepTraffic::State& state) {
  constexpr int kMostOnScreen = 16;
  const bool by_rank = state.copies.num_ranks <= kMostOnScreen;
  const int side = by_rank ? state.copies.num_ranks : state.copies.num_nodes;
  if (side < 2 || side > kMostOnScreen) return;
  const Table rows(by_rank ? state.copies.rank_copies : state.copies.node_copies, side);
  const char* place = by_rank ? "rank" : "node";
  const auto out = std::back_inserter(to);
  fmt::format_to(out, "\nCopies of a step from {} (rows) to {} (columns){}{}\n     ", place, place,
                 state.name.empty() ? "" : ", ", state.name);
  for (int c = 0; c < side; ++c) fmt::format_to(out, "{:>9}", c);
  for (int r = 0; r < side; ++r) {
    fmt::format_to(out, "\n{:>5}", r);
    for (const double copies : rows[r]) fmt::format_to(out, "{:9.1f}", copies);
  }
  to += '\n';
}

void append_heading(std::string& to, const StepTraffic& traffic) {
  const auto out = std::back_inserter(to);
  for (const StepTraffic::State& state : traffic.states) fmt::format_to(out, "{:>13}", state.name);
  for (const StepTraffic::State& state : traffic.states) {
    if (traffic.token_bytes > 0)
      fmt::format_to(out, "{:>13}", state.name.empty() ? "MB" : state.name + ", MB");
  }
}

// are_copies: they have bytes.
void append_row(std::string& to, const StepTraffic& traffic, const char* label,
                double (*of)(const StepTraffic::State&), bool are_copies) {
  const auto out = std::back_inserter(to);
  fmt::format_to(out, "\n  {:<50}", label);
  for (const StepTraffic::State& state : traffic.states) fmt::format_to(out, "{:13.1f}", of(state));
  if (traffic.token_bytes == 0 || !are_copies) return;
  const double megabytes = 1e-6 * static_cast<double>(traffic.token_bytes);
  for (const StepTraffic::State& state : traffic.states)
    fmt::format_to(out, "{:13.3f}", of(state) * megabytes);
}

ReportHeadline headline(const StepTraffic& traffic) {
  const bool nodes = traffic.topology.num_nodes() > 1;
  ReportHeadline headline{nodes ? "Between nodes" : "Between ranks",
                          nodes
                              ? "copies of a step, all layers, one for each other node of a token"
                              : "copies of a step, all layers, one for each other rank of a token",
                          false,
                          {}};
  for (const StepTraffic::State& state : traffic.states)
    headline.numbers.push_back({"", state.name, kSums[nodes ? 2 : 0].of(state), 1});
  return headline;
}

}  // namespace

std::optional<StepTraffic> step_traffic(const Recording& loads, const TokenSample* sample,
                                        const WireOptions& options, const Topology& topology,
                                        const std::vector<NamedPlacement>& placements) {
  if (sample == nullptr || sample->is_of_pairs) return std::nullopt;
  const TokenSample& tokens = *sample;
  StepTraffic traffic;
  traffic.topology = topology;
  traffic.token_bytes = options.token_bytes;
  traffic.tokens_per_step = tokens_per_step(loads.load, tokens.top_k);
  traffic.sampled = tokens.num_tokens();
  traffic.seen = tokens.tokens_seen;
  traffic.sources_recorded = !tokens.source_rank.empty();
  const double scale = traffic.tokens_per_step * loads.load.num_layers;
  for (const NamedPlacement& one : placements) {
    StepTraffic::State state{one.name, mean_traffic(one.placement, topology.node_of_rank, tokens)};
    state.copies *= scale;
    state.rank_copies_between_nodes = state.copies.rank_copies_between_nodes(topology.node_of_rank);
    if (topology.has_prices()) state.cost = state.copies.cost(topology.prices);
    traffic.states.push_back(std::move(state));
  }
  return traffic;
}

Json traffic_json(const StepTraffic& traffic) {
  Json json = {{"tokens_sampled", traffic.sampled},
               {"tokens_seen", traffic.seen},
               {"sources", traffic.sources_recorded ? "recorded" : "even"},
               {"tokens_per_step", traffic.tokens_per_step},
               {"nodes", traffic.topology.num_nodes()}};
  if (traffic.token_bytes > 0) json["token_bytes"] = traffic.token_bytes;
  for (const StepTraffic::State& state : traffic.states)
    add_state(state, traffic.topology.has_prices(),
              traffic.states.size() == 1 ? json : json[state.name]);
  return json;
}

std::string traffic_text(const StepTraffic& traffic) {
  std::string text = fmt::format(
      "\nTraffic of a step, all layers, {:.1f} tokens. From {} of {} tokens;\n{}.\n"
      "copies of tokens{:36}",
      traffic.tokens_per_step, traffic.sampled, traffic.seen, sources_text(traffic), "");
  append_heading(text, traffic);
  for (const Sum& sum : kSums) append_row(text, traffic, sum.label, sum.of, true);
  if (traffic.topology.has_prices()) {
    append_row(
        text, traffic, "price x copies to ranks",
        [](const StepTraffic::State& state) { return state.cost; }, false);
  }
  text += '\n';
  append_matrix(text, traffic.states.back());
  return text;
}

void add_traffic(const StepTraffic& traffic, Report& report) {
  for (size_t i = 0; i < traffic.states.size(); ++i)
    report.states[i].rank_copies = traffic.states[i].copies.rank_copies;
  report.token_bytes = traffic.token_bytes;
  report.headlines.push_back(headline(traffic));
  if (traffic.topology.has_prices()) {
    ReportHeadline cost{
        "Cost of copies", "price x copies to ranks of a step, all layers", false, {}};
    for (const StepTraffic::State& state : traffic.states)
      cost.numbers.push_back({"", state.name, state.cost, 1});
    report.headlines.push_back(std::move(cost));
  }
  report.facts.push_back(
      {"Traffic", fmt::format("from {} of {} tokens, {:.1f} a step", traffic.sampled, traffic.seen,
                              traffic.tokens_per_step)});
  report.definitions.push_back(
      {"Traffic",
       fmt::format("Copies of tokens that a step sends to experts in all layers; as much comes "
                   "back. A pick goes to its own rank's replica, else to one on its node, else to "
                   "any, with equal probability. {} tokens were looked at; {}.",
                   traffic.sampled, sources_text(traffic))});
}

std::string no_traffic_text(const WireOptions& options, const Recording* loads) {
  if (options.nodes == 1 && options.topology.empty() && options.token_bytes == 0) return "";
  if (loads != nullptr && loads->tokens && loads->tokens->is_of_pairs) {
    return "\nTraffic: not known, since the recording counts pairs of experts and has no tokens; "
           "trim "
           "keeps\npairs together.\n";
  }
  return "\nTraffic: not known, since the recording lists loads and no tokens.\n";
}

}  // namespace trimtab::cli
