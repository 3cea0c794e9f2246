// SPDX-License-Identifier: Apache-2.0
// Element types, views of rows, and the one owning buffer. A view never owns: whoever made the
// bytes keeps them alive for as long as the callee's comment says. All views are cheap values and
// are passed as such.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include "trimtab/table.h"

namespace trimtab {

// Element types, as safetensors names them; kU4 is not one of its. kF4 (E2M1) and kU4 pack two
// elements a byte, the first in the low half; kF8E8M0 is a power-of-two scale.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF4,
  kU4
};

// Bits of one element: 4 for kF4 and kU4, else a multiple of 8.
int bits(DType type);
// The bytes of an array of these sizes: shape_bytes(type, rows, cols). Where two elements share a
// byte the number of elements must be even.
template <class... Sizes>
size_t shape_bytes(DType type, Sizes... sizes) {
  return cells(sizes..., bits(type)) / 8;
}
// The safetensors name: "F32", "BF16", "F8_E4M3", ...; "U4".
std::string_view name(DType type);

// bfloat16 and IEEE half as storage; arithmetic happens in float.
struct bf16_t {
  uint16_t bits;
};
struct f16_t {
  uint16_t bits;
};
// The small types of the OCP MX and FP8 specifications, as storage. An e2m1_t is in the low four
// bits.
struct e4m3_t {
  uint8_t bits;
};
struct e2m1_t {
  uint8_t bits;
};
struct e8m0_t {
  uint8_t bits;
};

inline float to_float(float x) {
  return x;
}
inline float to_float(bf16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
float to_float(f16_t x);
// No infinities; codes 0x7f and 0xff are NaN.
constexpr float to_float(e4m3_t x) {
  const uint32_t magnitude = x.bits & 0x7fU;
  if (magnitude == 0x7fU) return std::numeric_limits<float>::quiet_NaN();
  // With its fields in the place of a float's it is 2^-120 of the value: the exponent's bias is 7,
  // not 127.
  return std::bit_cast<float>((x.bits & 0x80U) << 24 | magnitude << 20) * 0x1p120F;
}
constexpr float to_float(e2m1_t x) {
  constexpr float kMagnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float magnitude = kMagnitudes[x.bits & 7U];
  return x.bits & 8U ? -magnitude : magnitude;
}
// 2^(code - 127), the least of them subnormal; code 255 is NaN.
constexpr float to_float(e8m0_t x) {
  if (x.bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(x.bits == 0 ? 0x00400000U : uint32_t{x.bits} << 23);
}

// Round to nearest, ties to even; NaN stays NaN (quiet).
inline bf16_t to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((u >> 16) | 0x40U)};
  return {static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::kF32;
  else if constexpr (std::is_same_v<T, bf16_t>)
    return DType::kBF16;
  else if constexpr (std::is_same_v<T, f16_t>)
    return DType::kF16;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::kI32;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::kI64;
  else
    static_assert(sizeof(T) == 0, "no DType for this element type");
}

// A view of `rows` rows of `cols` elements, `stride` elements apart. Byte is std::byte or const
// std::byte.
template <class Byte>
struct BasicRows {
  Byte* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next, >= cols
  DType dtype = DType::kF32;

  BasicRows() = default;
  BasicRows(Byte* d, int64_t r, int64_t c, int64_t s, DType t)
      : data(d), rows(r), cols(c), stride(s), dtype(t) {}
  // Contiguous rows of a typed pointer.
  template <class T>
    requires(std::is_const_v<Byte> || !std::is_const_v<T>) &&
                (!std::is_same_v<std::remove_const_t<T>, std::byte>)
  BasicRows(T* d, int64_t r, int64_t c)
      : data(reinterpret_cast<Byte*>(d)),
        rows(r),
        cols(c),
        stride(c),
        dtype(dtype_of<std::remove_const_t<T>>()) {}
  // Rows -> ConstRows.
  operator BasicRows<const std::byte>() const {
    return {data, rows, cols, stride, dtype};
  }  // NOLINT: implicit

  size_t row_bytes() const { return shape_bytes(dtype, cols); }
  Byte* row(int64_t i) const { return data + shape_bytes(dtype, i, stride); }
  template <class T>
  auto* row_as(int64_t i) const {
    assert(dtype == dtype_of<T>());
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Element*>(data) + i * stride;
  }
  // Rows [first, first + count).
  BasicRows slice(int64_t first, int64_t count) const {
    return {row(first), count, cols, stride, dtype};
  }
};

using Rows = BasicRows<std::byte>;
using ConstRows = BasicRows<const std::byte>;

// The owning buffer: 64-byte aligned, zeroed, fixed size. Movable, not copyable. Large buffers ask
// for huge pages and take real memory only as it is touched.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  // Memory of another kind, which goes back when the owner does.
  Buffer(std::byte* memory, size_t bytes, std::shared_ptr<void> owner)
      : data_(memory, Free{bytes, std::move(owner)}), bytes_(memory == nullptr ? 0 : bytes) {}
  // A size without memory: data() is null. It says what a buffer would take.
  static Buffer outline(size_t bytes) {
    Buffer buffer;
    buffer.bytes_ = bytes;
    return buffer;
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    size_t bytes;
    std::shared_ptr<void> owner;  // null: the buffer is its own
    void operator()(std::byte* p);
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

// Buffers side by side in large ones, which go when the last of theirs does. Memory that is much
// smaller than a huge page is in one all the same, and huge pages are filled. Not thread-safe; may
// go before its buffers.
class BufferArena {
 public:
  explicit BufferArena(size_t chunk_bytes = size_t{64} << 20) : chunk_bytes_(chunk_bytes) {}
  // An arena whose buffers are outlines.
  static BufferArena of_outlines() { return BufferArena(kOutlines); }
  bool has_memory() const { return chunk_bytes_ != kOutlines; }
  Buffer take(size_t bytes);

 private:
  static constexpr size_t kOutlines = std::numeric_limits<size_t>::max();

  size_t chunk_bytes_;
  std::shared_ptr<Buffer> chunk_;
  size_t used_ = 0;
};

}  // namespace trimtab
