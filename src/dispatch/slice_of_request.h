// SPDX-License-Identifier: Apache-2.0
// Some tokens of a request.
#pragma once

#include <cstdint>

#include "trimtab/dispatcher.h"

namespace trimtab {

inline Request slice_of_request(const Request& request, int64_t first, int64_t count) {
  const int64_t pick = first * request.top_k, picks = count * request.top_k;
  Request slice = request;
  slice.x = request.x.slice(first, count);
  slice.ids = request.ids.subspan(pick, picks);
  slice.weights = request.weights.subspan(pick, picks);
  if (request.scales.rows > 0) slice.scales = request.scales.slice(first, count);
  return slice;
}

}  // namespace trimtab
