// SPDX-License-Identifier: Apache-2.0
#include "load/drift.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace trimtab {

Drift drift(const Load& load, int layer, int64_t window) {
  const auto shares = [&](int64_t w) {
    const std::vector<int64_t> counts = sum_of_steps(load, layer, {w * window, (w + 1) * window});
    std::vector<double> result(counts.begin(), counts.end());
    const double total = std::max(std::accumulate(result.begin(), result.end(), 0.0), 1.0);
    for (double& share : result) share /= total;
    return result;
  };
  Drift result;
  const int64_t windows = load.num_steps / window;
  std::vector<double> before = shares(0);
  for (int64_t w = 1; w < windows; ++w) {
    std::vector<double> now = shares(w);
    double change = 0;
    for (size_t e = 0; e < now.size(); ++e) change += std::abs(now[e] - before[e]) / 2;
    result.mean += change / static_cast<double>(windows - 1);
    result.worst = std::max(result.worst, change);
    before = std::move(now);
  }
  return result;
}

}  // namespace trimtab
