// SPDX-License-Identifier: Apache-2.0
#include "dispatch/permute_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/cat.h"

namespace trimtab {
namespace {

TEST(PermuteRows, GivesWhatACopyWouldGive) {
  // Wide enough for each member of the team to have columns of its own.
  constexpr int64_t kRows = 50, kCols = 1000;
  std::mt19937 random(7);
  for (const int64_t count : {0, 1, 2, 30, 49, 50}) {
    for (const bool weigh : {false, true}) {
      std::vector<int32_t> from(kRows);
      std::iota(from.begin(), from.end(), 0);
      if (count != 2) std::ranges::shuffle(from, random);  // 2: rows that stay where they are
      from.resize(static_cast<size_t>(count));
      std::vector<float> values(kRows * kCols), weights(kRows);
      for (float& value : values) value = static_cast<float>(random() % 1000);
      for (float& weight : weights) weight = static_cast<float>(random() % 8) - 2;
      const std::vector<float> before = values;
      Carver measure(nullptr);
      plan_permute(measure, kRows, kCols);
      const Buffer memory(measure.used());
      Carver carver(memory.data());
      Team team(3);
      permute_rows(Rows(values.data(), kRows, kCols), from,
                   weigh ? std::span<const float>(weights) : std::span<const float>{},
                   plan_permute(carver, kRows, kCols), team);
      for (int64_t i = 0; i < count; ++i) {
        const int32_t source = from[static_cast<size_t>(i)];
        for (int64_t c = 0; c < kCols; ++c) {
          const float value = before[static_cast<size_t>(source * kCols + c)];
          ASSERT_EQ(values[static_cast<size_t>(i * kCols + c)],
                    weigh ? value * weights[static_cast<size_t>(source)] : value)
              << cat(count, " rows: row ", i, " from ", source, ", column ", c);
        }
      }
    }
  }
}

}  // namespace
}  // namespace trimtab
