// SPDX-License-Identifier: Apache-2.0
// The ids of experts, layers and steps in recordings: their limits, and the ids of layers and steps
// that have none in their file.
#pragma once

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace trimtab {

// Both limits are far above any model. They keep an id of a broken file from becoming a size.
constexpr int kMaxExperts = 1 << 20;
constexpr int kMaxLayers = 1 << 20;
constexpr int kMaxExpertId = kMaxExperts - 1;
constexpr int kMaxLayerId = kMaxLayers - 1;
constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max();

// 0, 1, ..., number - 1.
template <class Id>
std::vector<Id> counted_ids(int64_t number) {
  std::vector<Id> ids(number);
  std::iota(ids.begin(), ids.end(), Id{0});
  return ids;
}

}  // namespace trimtab
