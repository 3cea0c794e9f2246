// SPDX-License-Identifier: Apache-2.0
#include "trimtab/trace.h"

#include <algorithm>
#include <bit>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {

TraceBuffer::TraceBuffer(int64_t capacity) {
  constexpr int64_t kMost = int64_t{1} << 32;
  if (capacity < 1 || capacity > kMost) {
    throw InvalidArgument(cat("a trace of ", capacity, " events, expected 1 to ", kMost));
  }
  const auto size = std::bit_ceil(static_cast<uint64_t>(capacity));
  mask_ = static_cast<int64_t>(size) - 1;
  events_ = std::make_unique<TraceEvent[]>(
      size);  // writes all of it, so that recording meets no new page
}

std::vector<TraceEvent> TraceBuffer::events() const {
  std::vector<TraceEvent> all;
  all.reserve(std::min(recorded_, capacity()));
  for (int64_t i = overwritten(); i < recorded_; ++i) all.push_back(events_[i & mask_]);
  return all;
}

}  // namespace trimtab
