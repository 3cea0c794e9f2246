// SPDX-License-Identifier: Apache-2.0
#include "load/predict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace trimtab {

double mean_of(std::span<const double> values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double upper_95(std::span<const double> series) {
  // Two-sided 95 % points of Student's t for 1..15 degrees of freedom.
  constexpr std::array<double, 15> kStudent = {12.706, 4.303, 3.182, 2.776, 2.571,
                                               2.447,  2.365, 2.306, 2.262, 2.228,
                                               2.201,  2.179, 2.160, 2.145, 2.131};
  const size_t n = series.size();
  const size_t runs = std::min<size_t>(n, kStudent.size() + 1);
  if (runs < 2) return mean_of(series);
  std::vector<double> means(runs);
  for (size_t i = 0; i < runs; ++i) {
    const size_t begin = i * n / runs;
    const size_t end = (i + 1) * n / runs;
    means[i] = mean_of(series.subspan(begin, end - begin));
  }
  const double center = mean_of(means);
  double squares = 0;
  for (const double mean : means) squares += (mean - center) * (mean - center);
  const auto count = static_cast<double>(runs);
  return mean_of(series) + kStudent[runs - 2] * std::sqrt(squares / (count - 1) / count);
}

}  // namespace trimtab
