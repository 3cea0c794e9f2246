// SPDX-License-Identifier: Apache-2.0
#include "base/rows.h"

#include <cassert>
#include <cstring>
#include <type_traits>

#include "base/row_tasks.h"

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

template <class From, class To>
void convert_elements(const std::byte* from, int64_t count, std::byte* to) {
  const auto* x = reinterpret_cast<const From*>(from);
  auto* y = reinterpret_cast<To*>(to);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<To, float>) {
      y[i] = to_float(x[i]);
    } else {
      y[i] = to_bf16(to_float(x[i]));
    }
  }
}

}  // namespace

bool overlap(ConstRows a, ConstRows b) noexcept {
  if (a.rows < 1 || b.rows < 1 || a.cols < 1 || b.cols < 1) return false;
  const auto extent = [](ConstRows rows) {
    return std::span(rows.data, rows.row(rows.rows - 1) + rows.row_bytes());
  };
  if (!overlap(extent(a), extent(b))) return false;
  const int64_t stride = shape_bytes(a.dtype, a.stride);
  const int64_t a_bytes = a.row_bytes(), b_bytes = b.row_bytes();
  if (shape_bytes(b.dtype, b.stride) != shape_bytes(a.dtype, a.stride)) return true;
  // Where the rows of b begin in those of a.
  const int64_t apart = ((b.data - a.data) % stride + stride) % stride;
  return apart < a_bytes || stride - apart < b_bytes;
}

void convert_row(const std::byte* from, DType from_dtype, int64_t count, DType to_dtype,
                 std::byte* to) noexcept {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, shape_bytes(from_dtype, count));
  } else if (from_dtype == DType::kF32) {
    assert(to_dtype == DType::kBF16);
    convert_elements<float, bf16_t>(from, count, to);
  } else {
    assert(from_dtype == DType::kBF16 && to_dtype == DType::kF32);
    convert_elements<bf16_t, float>(from, count, to);
  }
}

void convert_rows(ConstRows from, Rows to) {
  for (int64_t i = 0; i < to.rows; ++i)
    convert_row(from.row(i), from.dtype, to.cols, to.dtype, to.row(i));
}

void convert_rows(ConstRows from, Rows to, Team& team) {
  share_rows(team, to.rows, to.row_bytes(), [&](int64_t first, int64_t last) {
    convert_rows(from.slice(first, last - first), to.slice(first, last - first));
  });
}

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

void add_rows(ConstRows from, Rows to) noexcept {
  for (int64_t i = 0; i < to.rows; ++i) {
    const WeightedRow row{from.row_as<float>(i)};
    add_rows(std::span(&row, 1), to.row_as<float>(i), to.cols, true);
  }
}

void add_rows(ConstRows from, Rows to, Team& team) {
  share_rows(team, to.rows, to.row_bytes(), [&](int64_t first, int64_t last) {
    add_rows(from.slice(first, last - first), to.slice(first, last - first));
  });
}

}  // namespace trimtab
