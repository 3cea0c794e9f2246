// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "cli/output/text.h"
#include "cli/plan/serving_options.h"

namespace trimtab::cli {

// Adds to a command's JSON the rule and whose costs times are by, where the command line named any.
inline void add_serving_keys(const ServingOptions& options, const ServedBy& served,
                             nlohmann::ordered_json& report) {
  if (options.split != "equal" || served.cost) report["split"] = options.split;
  if (served.cost) report["cost"] = valid_utf8(served.about);
}

}  // namespace trimtab::cli
