// SPDX-License-Identifier: Apache-2.0
// What the files that bind planning share.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "bindings.h"
#include "trimtab/error.h"
#include "trimtab/load.h"

namespace trimtab::python {

// [steps, layers, experts], or [layers, experts] for one step. Throws InvalidArgument.
Load load_of(nb::handle counts);

// The engine's numbers of layers or steps; 0, 1, ... where it has none. Throws InvalidArgument when
// they are not `count`.
template <class T>
std::vector<T> ids_or_counted(std::optional<std::vector<T>> ids, int64_t count, const char* what) {
  if (!ids) {
    ids.emplace(count);
    std::iota(ids->begin(), ids->end(), T{0});
  }
  if (std::ssize(*ids) == count) return std::move(*ids);
  throw InvalidArgument(cat(ids->size(), " ", what, " for ", count));
}

}  // namespace trimtab::python
