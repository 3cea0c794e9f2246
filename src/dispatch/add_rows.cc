// SPDX-License-Identifier: Apache-2.0
#include "dispatch/add_rows.h"

#include <cstring>

namespace trimtab {
namespace {

// The narrowest vectors of the machines at hand: reading the rows takes longer than adding them up.
using Vector = float __attribute__((vector_size(16)));
constexpr int64_t kLanes = 4;
constexpr int64_t kVectors = 8;  // of the 16 registers
constexpr int64_t kBlock = kLanes * kVectors;

inline Vector load(const float* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace

void add_rows(std::span<const WeightedRow> rows, float* sum, int64_t count, bool more) noexcept {
  int64_t h = 0;
  for (; h + kBlock <= count; h += kBlock) {
    Vector block[kVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) block[v] = more ? load(sum + h + v * kLanes) : Vector{};
    for (const WeightedRow& row : rows) {
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) block[v] += row.weight * load(row.y + h + v * kLanes);
    }
    std::memcpy(sum + h, block, sizeof block);
  }
  for (; h < count; ++h) {
    float element = more ? sum[h] : 0.0F;
    for (const WeightedRow& row : rows) element += row.weight * row.y[h];
    sum[h] = element;
  }
}

}  // namespace trimtab
