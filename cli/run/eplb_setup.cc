// SPDX-License-Identifier: Apache-2.0
#include "cli/run/eplb_setup.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "trimtab/decoder.h"
#include "trimtab/dispatcher_kind.h"
#include "trimtab/error.h"
#include "trimtab/recordings.h"

namespace trimtab::cli {

namespace {

BalancerConfig read_config(const std::string& file, bool has_cost) {
  if (file.empty()) return parse_balancer_config(R"({"preset": "short"})", "", has_cost);
  std::ifstream in(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) throw FormatError(file, -1, "can't be read");
  return parse_balancer_config(text, file, has_cost);
}

Placement read_start(const std::string& file, int layers, int experts, int ranks) {
  PlacementOptions options;
  options.format = detect_format(file).format;
  if (options.format != FileFormat::kJson && options.format != FileFormat::kVllmAscend)
    options.num_ranks = ranks;
  Placement placement = read_placement(file, options).placement;
  if (placement.num_layers() != layers || placement.num_experts() != experts ||
      placement.num_ranks() != ranks) {
    throw InvalidArgument(
        fmt::format("{} is for {} layers of {} experts on {} ranks, this run has {} of {} on {}",
                    file, placement.num_layers(), placement.num_experts(), placement.num_ranks(),
                    layers, experts, ranks));
  }
  return placement;
}

// Experts in order, the first ones once more as replicas: slots are as even as they go.
Placement placement_in_order(int layers, int experts, int redundant, int ranks) {
  if (redundant == 0) return Placement::linear(layers, experts, ranks);
  std::vector<int> slots;
  for (int r = 0; r < ranks; ++r) {
    slots.push_back((r + 1) * (experts + redundant) / ranks - r * (experts + redundant) / ranks);
  }
  return default_placement(layers, experts, std::move(slots));
}

// Does the dispatcher share picks out over replicas? "auto" takes one that does where it has to.
bool shares_out(const std::string& dispatcher) {
  return dispatcher == "auto" || dispatcher_kind(dispatcher).shares_out;
}

void check_cost_option(const RunOptions& options, SplitRule split) {
  if (split == SplitRule::kTime && options.cost.empty())
    throw UsageError("--cost: split rule time needs it: measure, rows or FILE");
  if (split != SplitRule::kTime && !options.cost.empty())
    throw UsageError(fmt::format("--cost: it has no effect on split rule {}", name(split)));
}

// Every rank holds its part of all experts: there is nothing to place.
EplbSetup set_up_parts(const RunOptions& options, const ModelConfig& model,
                       const ParallelLayout& layout) {
  const auto refuse = [](bool given, const char* option) {
    if (given)
      throw UsageError(
          fmt::format("{}: with --no-ep every rank holds a part of all experts", option));
  };
  refuse(options.eplb != "off", "--eplb");
  refuse(options.redundant_experts > 0, "--redundant-experts");
  refuse(!options.eplb_config.empty(), "--eplb-config");
  refuse(!options.split.empty(), "--split");
  refuse(!options.cost.empty(), "--cost");
  refuse(!options.trace_out.empty(), "--trace-out");
  return {.mode = parse_eplb_mode(options.eplb),
          .config = {},
          .start = placement_of_layout(layout, num_moe_layers(model), model.router.num_experts)};
}

}  // namespace

EplbSetup set_up_eplb(const RunOptions& options, const ModelConfig& model, int ranks,
                      const std::optional<ParallelLayout>& layout) {
  if (layout && !layout->ep) return set_up_parts(options, model, *layout);
  const int layers = num_moe_layers(model), experts = model.router.num_experts;
  EplbSetup eplb{.mode = parse_eplb_mode(options.eplb),
                 .config = read_config(options.eplb_config, !options.cost.empty()),
                 .start = Placement::linear(layers, experts, ranks)};
  if (!options.split.empty()) eplb.config.split = parse_split_rule(options.split);
  eplb.config.screen = eplb.mode.kind == EplbMode::Kind::kScreen;
  if (eplb.mode.balances() && ranks == 1) {
    throw UsageError(
        fmt::format("--eplb {}: one rank has nothing to balance; say --ranks N", options.eplb));
  }
  if (eplb.mode.begins_with_file()) {
    eplb.start = read_start(eplb.mode.file, layers, experts, ranks);
  } else {
    const int by_default = eplb.mode.balances() ? ranks : 0;
    const int redundant = options.redundant_experts < 0 ? by_default : options.redundant_experts;
    // More would put an expert twice on a rank.
    const int64_t most = int64_t{experts} * (ranks - 1);
    if (options.redundant_experts > most) {
      throw UsageError(
          fmt::format("--redundant-experts: {} is more than {}, with which each of {} ranks holds "
                      "all {} experts",
                      redundant, most, ranks, experts));
    }
    eplb.start = placement_in_order(layers, experts, redundant, ranks);
  }
  if (!eplb.has_replicas() && !eplb.mode.balances() && !options.eplb_config.empty()) {
    throw UsageError(
        "--eplb-config: it has no effect without --eplb dynamic or screen, or replicas");
  }
  if (eplb.has_replicas() || eplb.mode.balances()) {
    eplb.split = shares_out(options.dispatcher) ? eplb.config.split : SplitRule::kStatic;
    if (eplb.split != eplb.config.split &&
        !(options.eplb_config.empty() && options.split.empty())) {
      throw InvalidArgument(
          fmt::format("dispatcher {} can't share tokens out over replicas; use auto, {}, or {}",
                      options.dispatcher, dispatcher_names([](const DispatcherKind& kind) {
                        return kind.shares_out && kind.format != Format::kBatched;
                      }),
                      options.split.empty() ? "\"split\": \"static\" in " + options.eplb_config
                                            : "--split static"));
    }
    eplb.config.split = eplb.split;
  } else if (!options.split.empty()) {
    throw UsageError("--split: it has no effect without replicas or --eplb dynamic or screen");
  }
  check_cost_option(options, eplb.split);
  return eplb;
}

}  // namespace trimtab::cli
