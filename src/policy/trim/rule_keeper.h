// SPDX-License-Identifier: Apache-2.0
// Keeps a search that changes a placement slot by slot to the rules for nodes.
#pragma once

#include "policy/trim/mutable_layer.h"
#include "trimtab/node_rules.h"

namespace trimtab {

// Tells whether a placement that kept to the rules does so after a change.
class RuleKeeper {
 public:
  RuleKeeper(const NodeRules& rules, int num_groups) : rules_(rules), num_groups_(num_groups) {}
  int num_groups() const { return num_groups_; }
  bool groups() const { return rules_.groups_on_nodes; }
  // Looks at the experts that the last change touched.
  bool holds(const MutableLayer& layer) const;

 private:
  const NodeRules rules_;
  const int num_groups_;
};

}  // namespace trimtab
