// SPDX-License-Identifier: Apache-2.0
// Turns rows of 4-byte steps into the columns that panels of weights and tiles of rows are made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace trimtab {

// Source rows can lie anywhere, so they are not aligned.
typedef uint32_t Steps4 __attribute__((vector_size(16)));

inline Steps4 load_steps(const std::byte* p) {
  Steps4 steps;
  std::memcpy(&steps, p, sizeof(steps));
  return steps;
}

// out[s * out_stride + r] = step s of row r, which begins at row(r). out_stride: steps.
template <class Row>
void transpose_steps(const Row& row, int64_t rows, int64_t steps, uint32_t* out,
                     int64_t out_stride) {
  // Short enough that the lines of `out` stay in L1 until the next four rows fill them up.
  constexpr int64_t kRun = 256;
  const auto one = [&](int64_t r, int64_t s) {
    std::memcpy(out + s * out_stride + r, row(r) + static_cast<size_t>(s) * 4, 4);
  };
  for (int64_t begin = 0; begin < steps; begin += kRun) {
    const int64_t end = std::min(begin + kRun, steps), whole = begin + (end - begin) / 4 * 4;
    for (int64_t r = 0; r + 4 <= rows; r += 4) {
      const std::byte* const four[] = {row(r), row(r + 1), row(r + 2), row(r + 3)};
      for (int64_t s = begin; s < whole; s += 4) {
        const auto at = static_cast<size_t>(s) * 4;
        const Steps4 a = load_steps(four[0] + at), b = load_steps(four[1] + at),
                     c = load_steps(four[2] + at), d = load_steps(four[3] + at);
        const Steps4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                     cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
        const Steps4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7),
                     cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        const Steps4 columns[4] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                                   __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                                   __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                                   __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
        for (int i = 0; i < 4; ++i)
          std::memcpy(out + (s + i) * out_stride + r, &columns[i], sizeof(Steps4));
      }
      for (int64_t s = whole; s < end; ++s) {
        for (int64_t i = r; i < r + 4; ++i) one(i, s);
      }
    }
    for (int64_t r = rows / 4 * 4; r < rows; ++r) {
      for (int64_t s = begin; s < end; ++s) one(r, s);
    }
  }
}

}  // namespace trimtab
