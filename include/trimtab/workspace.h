// SPDX-License-Identifier: Apache-2.0
// A Workspace is the memory of one call in flight. It is reserved for the worst case once, handed
// out by bumping a pointer, and given back all at once when the call ends; it throws when asked for
// more than was reserved and never grows, so the forward pass does not allocate.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "trimtab/table.h"
#include "trimtab/tensor.h"

namespace trimtab {

// Not thread-safe: one call in flight uses it. Layers that run one after another share it.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : buffer_(bytes) {}
  // Takes memory that peers can read: Communicator::allocate().
  explicit Workspace(Buffer buffer) : buffer_(std::move(buffer)) {}

  // 64-byte aligned, uninitialised. Throws InvalidArgument with the sizes when the reserve does not
  // hold it.
  std::byte* take_bytes(size_t bytes);
  template <class T>
  std::span<T> take(size_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    return {reinterpret_cast<T*>(take_bytes(count * sizeof(T))), count};
  }
  Rows take_rows(int64_t rows, int64_t cols, DType dtype) {
    return {take_bytes(shape_bytes(dtype, rows, cols)), rows, cols, cols, dtype};
  }

  // mark() .. release(mark): everything taken in between is given back.
  size_t mark() const { return used_; }
  void release(size_t mark) { used_ = mark; }

  size_t capacity() const { return buffer_.bytes(); }
  size_t peak() const { return peak_; }

  // The bytes that take_bytes() really uses for a request; whoever computes a reserve adds these
  // up.
  static constexpr size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  Buffer buffer_;
  size_t used_ = 0;
  size_t peak_ = 0;
};

}  // namespace trimtab
