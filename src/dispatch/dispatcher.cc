// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatcher.h"

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {

std::unique_ptr<Dispatcher> make_dispatcher(std::string_view name, const DispatchShape& shape, int rank) {
  if (name == "pull") return make_pull_dispatcher(shape, rank);
  if (name == "all_gather") return make_all_gather_dispatcher(shape, rank);
  throw InvalidArgument(cat("unknown dispatcher \"", name, "\"; there are: all_gather, pull"));
}

}  // namespace trimtab
