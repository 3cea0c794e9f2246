// SPDX-License-Identifier: Apache-2.0
// A Matrix owns values in two dimensions; a Table is a view of such values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/table.h"

namespace trimtab {

// Owns rows x cols values that stand one row after the other: [rows, cols].
template <class T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(int64_t rows, int64_t cols, T value = {})
      : cols_(cols), values_(cells(rows, cols), value) {}

  std::span<T> operator[](int64_t row) { return {values_.data() + row * cols_, cells(cols_)}; }
  std::span<const T> operator[](int64_t row) const {
    return {values_.data() + row * cols_, cells(cols_)};
  }
  T& operator()(int64_t row, int64_t col) { return values_[row * cols_ + col]; }
  const T& operator()(int64_t row, int64_t col) const { return values_[row * cols_ + col]; }
  // All values, row by row.
  std::span<T> values() { return values_; }
  std::span<const T> values() const { return values_; }

 private:
  int64_t cols_ = 0;
  std::vector<T> values_;
};

}  // namespace trimtab
