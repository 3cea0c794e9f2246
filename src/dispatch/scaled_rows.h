// SPDX-License-Identifier: Apache-2.0
// Rows together with their scales (none for unquantised rows), as they travel for a token.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/carver.h"
#include "base/quantize_rows.h"
#include "dispatch/shape.h"
#include "trimtab/tensor.h"

namespace trimtab {

template <class AnyRows>
struct BasicScaledRows {
  AnyRows x;
  AnyRows scales;  // no columns: none

  operator BasicScaledRows<ConstRows>() const { return {x, scales}; }  // NOLINT: implicit
  BasicScaledRows slice(int64_t first, int64_t count) const {
    // Without scales there is nothing to slice, and the view says "none" with no rows.
    return {x.slice(first, count), scales.cols > 0 ? scales.slice(first, count) : AnyRows{}};
  }
};
using ScaledRows = BasicScaledRows<Rows>;
using ConstScaledRows = BasicScaledRows<ConstRows>;

// The same for rows that lie side by side.
inline std::span<std::byte> bytes_of(Rows rows) {
  return {rows.data, cells(rows.rows, rows.row_bytes())};
}
inline std::span<const std::byte> bytes_of(ConstRows rows) {
  return {rows.data, cells(rows.rows, rows.row_bytes())};
}

inline ScaledRows take_scaled_rows(Carver& carver, int64_t rows, const RankShape& shape) {
  const ScaleShape scales = shape.scales();
  return {carver.take_rows(rows, shape.hidden, shape.dtype),
          carver.take_rows(rows, scales.cols, scales.dtype)};
}

template <class T>
void scale_row(const T* __restrict from, T* __restrict to, int64_t count, float weight) {
  for (int64_t h = 0; h < count; ++h) {
    if constexpr (std::is_same_v<T, float>) {
      to[h] = from[h] * weight;
    } else {
      to[h] = to_bf16(to_float(from[h]) * weight);
    }
  }
}

// Row i of `from` to row j of `to`, both of one dtype; times weight if weigh (which F8_E4M3 rows
// can't be).
inline void copy_row(const ConstScaledRows& from, int64_t i, const ScaledRows& to, int64_t j,
                     bool weigh, float weight) {
  assert(from.x.dtype == to.x.dtype);
  if (to.scales.cols > 0) std::memcpy(to.scales.row(j), from.scales.row(i), to.scales.row_bytes());
  if (!weigh || to.x.dtype == DType::kI8) {
    std::memcpy(to.x.row(j), from.x.row(i), to.x.row_bytes());
    if (weigh) *to.scales.row_as<float>(j) *= weight;
  } else if (to.x.dtype == DType::kF32) {
    scale_row(from.x.row_as<float>(i), to.x.row_as<float>(j), to.x.cols, weight);
  } else {
    scale_row(from.x.row_as<bf16_t>(i), to.x.row_as<bf16_t>(j), to.x.cols, weight);
  }
}

}  // namespace trimtab
