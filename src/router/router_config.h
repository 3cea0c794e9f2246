// SPDX-License-Identifier: Apache-2.0
// The checks behind Router's constructor.
#pragma once

#include "trimtab/router.h"

namespace trimtab {

// Throws InvalidArgument with the values for whatever no router can do: sizes, groups, tables,
// options that exclude each other.
void check_router_config(const RouterConfig& config);

}  // namespace trimtab
