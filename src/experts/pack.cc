// SPDX-License-Identifier: Apache-2.0
#include "experts/pack.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace trimtab {
namespace {

template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, float>) {
    return to_float(x);
  } else {
    return to_bf16(to_float(x));
  }
}

// Sources may be anywhere in a mapped file, so they are not aligned.
template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// 16 bytes of elements as bits, in the compiler's own vector type.
template <class T>
struct Vector {
  static constexpr int kCount = 16 / sizeof(T);
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  typedef Bits Reg __attribute__((vector_size(16)));

  // a0 b0 a1 b1 ... of the lower, of the upper halves.
  static Reg interleave_low(Reg a, Reg b) {
    if constexpr (kCount == 8) {
      return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    } else {
      return __builtin_shufflevector(a, b, 0, 4, 1, 5);
    }
  }
  static Reg interleave_high(Reg a, Reg b) {
    if constexpr (kCount == 8) {
      return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    } else {
      return __builtin_shufflevector(a, b, 2, 6, 3, 7);
    }
  }
  // kCount x kCount, by log2(kCount) rounds of interleaving the lower half of the rows into the upper.
  static void transpose(Reg (&rows)[kCount]) {
    for (int round = 1; round < kCount; round *= 2) {
      Reg mixed[kCount];
      for (int r = 0; r < kCount / 2; ++r) {
        mixed[2 * r] = interleave_low(rows[r], rows[r + kCount / 2]);
        mixed[2 * r + 1] = interleave_high(rows[r], rows[r + kCount / 2]);
      }
      std::memcpy(rows, mixed, sizeof(mixed));
    }
  }
};

template <class To, class From>
class Packer {
 public:
  Packer(const MatrixSource& source, int64_t first, int64_t count, int64_t width, To* out)
      : source_(source), first_(first), count_(count), width_(width), out_(out) {}

  void run() const {
    if (source_.col_stride == 1) {
      pack_dense();
    } else {
      pack_any(0, count_, 0, source_.cols);
    }
  }

 private:
  using V = Vector<From>;

  const std::byte* address(int64_t row, int64_t i) const {
    return source_.data +
           ((first_ + row) * source_.row_stride + i * source_.col_stride) * static_cast<int64_t>(sizeof(From));
  }

  // The inner loop runs along the output, and along the source where that is transposed.
  void pack_any(int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t row = row_begin; row < row_end; ++row) {
        out_[i * width_ + row] = convert<To>(load<From>(address(row, i)));
      }
    }
  }

  // Squares of the source at a time. A few rows are read side by side, long enough to be streams for the prefetcher,
  // and short enough that the lines they write stay in L2 until the next rows fill them up.
  void pack_dense() const {
    constexpr int64_t kRun = 512;
    const int64_t rows = count_ / V::kCount * V::kCount;
    const int64_t cols = source_.cols / V::kCount * V::kCount;
    for (int64_t begin = 0; begin < cols; begin += kRun) {
      for (int64_t row = 0; row < rows; row += V::kCount) {
        for (int64_t i = begin; i < std::min(begin + kRun, cols); i += V::kCount) pack_square(row, i);
      }
    }
    pack_any(0, rows, cols, source_.cols);
    pack_any(rows, count_, 0, source_.cols);
  }

  void pack_square(int64_t row, int64_t i) const {
    typename V::Reg square[V::kCount];
    for (int r = 0; r < V::kCount; ++r) square[r] = load<typename V::Reg>(address(row + r, i));
    V::transpose(square);
    for (int c = 0; c < V::kCount; ++c) {
      From elements[V::kCount];
      std::memcpy(elements, &square[c], sizeof(elements));
      for (int r = 0; r < V::kCount; ++r) out_[(i + c) * width_ + row + r] = convert<To>(elements[r]);
    }
  }

  const MatrixSource& source_;
  int64_t first_, count_, width_;
  To* out_;
};

// Any source by way of f32. Rows are read in pieces, so that the lines they write stay in L2 until the next rows fill
// them up.
template <class To>
void pack_read(const MatrixSource& source, int64_t first, int64_t count, int64_t width, To* out) {
  constexpr int64_t kRun = 512;
  float values[kRun];
  for (int64_t begin = 0; begin < source.cols; begin += kRun) {
    const int64_t end = std::min(begin + kRun, source.cols);
    for (int64_t row = 0; row < count; ++row) {
      read_row(source, first + row, begin, end, values);
      for (int64_t i = begin; i < end; ++i) out[i * width + row] = convert<To>(values[i - begin]);
    }
  }
}

template <class To>
void pack_as(const MatrixSource& source, int64_t first, int64_t count, int64_t width, std::byte* out) {
  To* to = reinterpret_cast<To*>(out);
  switch (source.dtype) {
    case DType::kF32:
      return Packer<To, float>(source, first, count, width, to).run();
    case DType::kBF16:
      return Packer<To, bf16_t>(source, first, count, width, to).run();
    case DType::kF16:
      return Packer<To, f16_t>(source, first, count, width, to).run();
    default:
      return pack_read(source, first, count, width, to);
  }
}

}  // namespace

void pack_columns(const MatrixSource& source, int64_t first, int64_t count, int64_t width, DType to, std::byte* out) {
  if (to == DType::kF32) {
    pack_as<float>(source, first, count, width, out);
  } else {
    pack_as<bf16_t>(source, first, count, width, out);
  }
}

}  // namespace trimtab
