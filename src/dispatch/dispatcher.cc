// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatcher.h"

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

struct Named {
  std::string_view name;
  std::unique_ptr<Dispatcher> (*make)(const DispatchShape& shape, int rank);
};
constexpr Named kDispatchers[] = {
    {"all_gather", [](const DispatchShape& shape, int rank) { return make_all_gather_dispatcher(shape, rank); }},
    {"all_to_all", make_all_to_all_dispatcher},
    {"grouped", make_grouped_dispatcher},
    {"mc2", make_mc2_dispatcher},
    {"packed", make_packed_dispatcher},
    {"pull", make_pull_dispatcher},
    {"pull_batched", make_pull_batched_dispatcher},
};

}  // namespace

std::unique_ptr<Dispatcher> make_dispatcher(std::string_view name, const DispatchShape& shape, int rank) {
  std::string names;
  for (const Named& known : kDispatchers) {
    if (known.name == name) return known.make(shape, rank);
    names += cat(names.empty() ? "" : ", ", known.name);
  }
  throw InvalidArgument(cat("unknown dispatcher \"", name, "\"; there are: ", names));
}

}  // namespace trimtab
