// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/serving_options.h"

#include <fmt/format.h>

#include "cli/output/text.h"
#include "trimtab/cost_file.h"
#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

std::string name_of(const MeasuredCost& cost) {
  return fmt::format("{} {} {} on {} thread{}", cost.shape, cost.weights, cost.isa, cost.threads,
                     cost.threads == 1 ? "" : "s");
}

const MeasuredCost& only_cost(const std::vector<MeasuredCost>& costs,
                              const ServingOptions& options) {
  const MeasuredCost* found = nullptr;
  bool is_only = true;
  std::string all;
  for (const MeasuredCost& cost : costs) {
    all += fmt::format("{}{}", all.empty() ? "" : "; ", printable(valid_utf8(name_of(cost))));
    if (!options.cost_weights.empty() && cost.weights != options.cost_weights) continue;
    is_only = found == nullptr;
    found = &cost;
  }
  if (found == nullptr) {
    throw InvalidArgument(fmt::format("{}: no costs of weights {}; it has {}", options.cost,
                                      options.cost_weights, all));
  }
  if (!is_only) {
    throw InvalidArgument(fmt::format("{}: several costs fit ({}); {}", options.cost, all,
                                      options.cost_weights.empty()
                                          ? "choose with --cost-weights"
                                          : "keep one of them in a file of its own"));
  }
  return *found;
}

}  // namespace

void add_serving(Command& command, ServingOptions& options) {
  command
      .text("--split", options.split,
            "How a step's tokens are shared out over replicas: equal, static, round_robin, split "
            "or time")
      .one_of({"equal", "static", "round_robin", "split", "time"})
      .type("NAME")
      .shows_default();
  Option cost = command.text("--cost", options.cost,
                             "What an expert takes for its rows: rows (as many times as it has), "
                             "or a file of bench experts --cost-out; gives times beside rows");
  cost.type("rows|FILE");
  command.text("--cost-weights", options.cost_weights, "Which of the file's weight formats")
      .type("NAME")
      .needs(cost);
}

ServedBy read_serving(const ServingOptions& options) {
  ServedBy served{.sharing = parse_sharing(options.split), .cost = {}};
  if (options.cost.empty() && served.sharing != SplitRule::kTime) return served;
  if (options.cost.empty() || options.cost == "rows") {
    if (!options.cost_weights.empty())
      throw UsageError("--cost-weights: --cost rows has no weights");
    served.cost = CostModel::of_rows();
    served.about = "rows";
    return served;
  }
  const std::vector<MeasuredCost> costs = read_costs(options.cost);
  const MeasuredCost& found = only_cost(costs, options);
  served.cost = found.cost;
  served.about = name_of(found);
  return served;
}

std::string serving_text(const ServingOptions& options, const ServedBy& served) {
  std::string text =
      options.split == "equal"
          ? "Every expert's tokens are shared equally among its replicas."
          : fmt::format("A step's tokens are shared out by the rule {}.", options.split);
  if (!served.cost) return text;
  if (served.about == "rows") {
    text += " An expert takes as long as it has rows: times are rows";
    return text + (options.cost.empty() ? ", since --cost names no file." : ".");
  }
  return text + fmt::format(" Times are those of {}.", printable(valid_utf8(served.about)));
}

}  // namespace trimtab::cli
