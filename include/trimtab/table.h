// SPDX-License-Identifier: Apache-2.0
// Views of typed values in two dimensions. Indices are signed, as the project's ids and counts are,
// so that code which computes with them needs no casts.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace trimtab {

// The number of cells of an array of these sizes, which must not be negative. The product is
// computed in 64 bits whatever the types of the sizes are.
template <class... Sizes>
constexpr size_t cells(Sizes... sizes) {
  return (size_t{1} * ... * static_cast<size_t>(sizes));
}

// A view of rows x cols values that stand one row after the other: [rows, cols]. It owns nothing.
// Indices out of range are a broken invariant (assert).
template <class T>
class Table {
 public:
  Table() = default;
  Table(T* data, int64_t rows, int64_t cols) : data_(data), rows_(rows), cols_(cols) {}
  // Cuts a span, or a vector, into rows of `cols` values each; cols > 0.
  Table(std::span<T> values, int64_t cols) : Table(values.data(), std::ssize(values) / cols, cols) {
    assert(std::ssize(values) % cols == 0);
  }
  // Table<T> -> Table<const T>.
  template <class U>
    requires(std::is_same_v<const U, T>)
  Table(const Table<U>& other)  // NOLINT: implicit
      : data_(other.data()), rows_(other.rows()), cols_(other.cols()) {}

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  T* data() const { return data_; }
  std::span<T> values() const { return {data_, cells(rows_, cols_)}; }

  std::span<T> operator[](int64_t row) const {
    assert(0 <= row && row < rows_);
    return {data_ + row * cols_, cells(cols_)};
  }
  T& operator()(int64_t row, int64_t col) const {
    assert(0 <= row && row < rows_ && 0 <= col && col < cols_);
    return data_[row * cols_ + col];
  }
  // The rows [first, first + count).
  Table slice(int64_t first, int64_t count) const {
    assert(0 <= first && 0 <= count && first + count <= rows_);
    return {data_ + first * cols_, count, cols_};
  }

 private:
  T* data_ = nullptr;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
};

template <class T>
Table(std::vector<T>&, int64_t) -> Table<T>;
template <class T>
Table(const std::vector<T>&, int64_t) -> Table<const T>;
template <class T>
Table(std::span<T>, int64_t) -> Table<T>;

}  // namespace trimtab
