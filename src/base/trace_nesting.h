// SPDX-License-Identifier: Apache-2.0
// For tests of traces: slices of one thread are apart from each other or one is inside the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace trimtab {

// slices: (begin, end), in any order.
inline bool slices_nest(std::vector<std::pair<int64_t, int64_t>> slices) {
  std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  });
  std::vector<int64_t> open;  // ends
  for (const auto& [begin, end] : slices) {
    if (end < begin) return false;
    while (!open.empty() && open.back() <= begin) open.pop_back();
    if (!open.empty() && open.back() < end) return false;
    open.push_back(end);
  }
  return true;
}

}  // namespace trimtab
