// SPDX-License-Identifier: Apache-2.0
// The library's table of dispatchers, as options and help texts show it.
#pragma once

#include <string>
#include <vector>

#include "trimtab/dispatcher_kind.h"

namespace trimtab::cli {

// The names of the kinds for which `holds` is true, in the order of the table.
std::vector<std::string> dispatchers_that(bool (*holds)(const DispatcherKind& kind));

// The same kinds for the footer of a help text: a line each, with the name and what it does.
std::string lines_of_dispatchers(bool (*holds)(const DispatcherKind& kind));

}  // namespace trimtab::cli
