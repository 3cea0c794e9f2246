// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatcher_kind.h"

#include <vector>

#include "base/cat.h"
#include "dispatch/kinds.h"
#include "trimtab/error.h"

namespace trimtab {

std::span<const DispatcherKind> dispatcher_kinds() {
  return kDispatcherKinds;
}

const DispatcherKind& dispatcher_kind(std::string_view name) {
  for (const DispatcherKind& kind : kDispatcherKinds) {
    if (kind.name == name) return kind;
  }
  throw InvalidArgument(cat("unknown dispatcher \"", name, "\"; there are: ", dispatcher_names()));
}

std::string dispatcher_names(bool (*holds)(const DispatcherKind& kind)) {
  std::vector<std::string_view> names;
  for (const DispatcherKind& kind : kDispatcherKinds) {
    if (holds == nullptr || holds(kind)) names.push_back(kind.name);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 < names.size() ? ", " : " and ";
    text += names[i];
  }
  return text;
}

}  // namespace trimtab
