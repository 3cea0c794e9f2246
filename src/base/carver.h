// SPDX-License-Identifier: Apache-2.0
// Cuts one piece of memory into the parts of an exchange. The same plan runs over no memory to
// learn the size, so what workspace_bytes() promises and what an exchange takes are one piece of
// code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trimtab/table.h"
#include "trimtab/tensor.h"
#include "trimtab/workspace.h"

namespace trimtab {

class Carver {
 public:
  // base: null to measure only.
  explicit Carver(std::byte* base) : base_(base) {}

  bool measuring() const { return base_ == nullptr; }
  std::byte* take_bytes(size_t bytes) {
    std::byte* p = base_ == nullptr ? nullptr : base_ + used_;
    used_ += Workspace::padded(bytes);
    return p;
  }
  template <class T>
  std::span<T> take(int64_t count) {
    return {reinterpret_cast<T*>(take_bytes(cells(count, sizeof(T)))), cells(count)};
  }
  template <class T>
  Table<T> take_table(int64_t rows, int64_t cols) {
    return {take<T>(rows * cols).data(), rows, cols};
  }
  Rows take_rows(int64_t rows, int64_t cols, DType dtype) {
    return {take_bytes(shape_bytes(dtype, rows, cols)), rows, cols, cols, dtype};
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace trimtab
