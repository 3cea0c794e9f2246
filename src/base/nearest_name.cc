// SPDX-License-Identifier: Apache-2.0
#include "base/nearest_name.h"

#include <algorithm>
#include <vector>

#include "base/cat.h"

namespace trimtab {
namespace {

// The optimal string alignment distance.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d.back().back();
}

}  // namespace

std::string_view nearest_name(std::string_view wrong, std::span<const std::string_view> names) {
  std::string_view nearest;
  size_t least = wrong.size() / 3 + 1;
  for (const std::string_view name : names) {
    const size_t changes = distance(wrong, name);
    if (changes < least) {
      least = changes;
      nearest = name;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view wrong, std::span<const std::string_view> names) {
  const std::string_view nearest = nearest_name(wrong, names);
  return nearest.empty() ? "" : cat(" (did you mean \"", nearest, "\"?)");
}

}  // namespace trimtab
