// SPDX-License-Identifier: Apache-2.0
#include "cli/options/dispatchers.h"

#include <fmt/format.h>

namespace trimtab::cli {

std::vector<std::string> dispatchers_that(bool (*holds)(const DispatcherKind& kind)) {
  std::vector<std::string> names;
  for (const DispatcherKind& kind : dispatcher_kinds()) {
    if (holds(kind)) names.emplace_back(kind.name);
  }
  return names;
}

std::string lines_of_dispatchers(bool (*holds)(const DispatcherKind& kind)) {
  std::string lines;
  for (const DispatcherKind& kind : dispatcher_kinds()) {
    if (holds(kind)) lines += fmt::format("  {:<13} {}\n", kind.name, kind.summary);
  }
  return lines;
}

}  // namespace trimtab::cli
