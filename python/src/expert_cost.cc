// SPDX-License-Identifier: Apache-2.0
#include "expert_cost.h"

#include "base/cat.h"
#include "trimtab/cost_file.h"
#include "trimtab/error.h"
#include "trimtab/measure_cost.h"
#include "trimtab/team.h"

namespace trimtab::python {

void check_cost_of_rule(SplitRule split, const std::string& cost) {
  if (split == SplitRule::kTime && cost.empty())
    throw InvalidArgument("split rule time needs a cost: measure, rows or a file of costs");
  if (split != SplitRule::kTime && !cost.empty())
    throw InvalidArgument(cat("a cost has no effect on split rule ", name(split)));
}

std::shared_ptr<const CostModel> given_cost(const std::string& cost, const ExpertTable& like,
                                            int threads) {
  if (cost.empty() || cost == "measure") return nullptr;
  if (cost == "rows") return std::make_shared<const CostModel>(CostModel::of_rows());
  const WantedCost wanted{.hidden = like.hidden(),
                          .intermediate = like.intermediate(),
                          .weights = name(like.format()),
                          .isa = std::string(kernel_isa()),
                          .threads = threads};
  return std::make_shared<const CostModel>(find_cost(read_costs(cost), wanted, cost).cost);
}

CostModel measured_cost(const Experts& experts, int threads) {
  Team team(threads);
  return measure_cost(experts, team);
}

}  // namespace trimtab::python
