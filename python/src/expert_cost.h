// SPDX-License-Identifier: Apache-2.0
// Where a runtime's cost model comes from, as `trimtab run --cost` names it: "measure", "rows", or
// a file that `trimtab bench experts --cost-out` wrote. "": there is none.
#pragma once

#include <memory>
#include <string>

#include "expert_table.h"
#include "trimtab/cost_model.h"
#include "trimtab/experts.h"
#include "trimtab/split.h"

namespace trimtab::python {

// Throws InvalidArgument for the rule kTime without a cost and for a cost that no rule asks for.
void check_cost_of_rule(SplitRule split, const std::string& cost);

// The cost of "rows" or of a file, for experts like these on so many threads; null for "measure"
// and
// "". Throws InvalidArgument where the file has none for them, and as read_costs().
std::shared_ptr<const CostModel> given_cost(const std::string& cost, const ExpertTable& like,
                                            int threads);

// Measures these experts in about 0.05 s, on threads of its own.
CostModel measured_cost(const Experts& experts, int threads);

}  // namespace trimtab::python
