// SPDX-License-Identifier: Apache-2.0
#include "trimtab/trace.h"

#include <algorithm>
#include <bit>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {

TraceBuffer::TraceBuffer(int64_t capacity) {
  constexpr int64_t kMost = int64_t{1} << 32;
  if (capacity < 1 || capacity > kMost) {
    throw InvalidArgument(cat("a trace of ", capacity, " events, expected 1 to ", kMost));
  }
  const size_t size = std::bit_ceil(cells(capacity));
  mask_ = size - 1;
  // This writes all of it, so that recording meets no new page.
  events_ = std::make_unique<TraceEvent[]>(size);
}

std::vector<TraceEvent> TraceBuffer::events() const {
  std::vector<TraceEvent> all;
  all.reserve(std::min(recorded_, capacity()));
  for (int64_t i = overwritten(); i < recorded_; ++i) all.push_back(events_[i & mask_]);
  return all;
}

}  // namespace trimtab
