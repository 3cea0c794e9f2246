// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "experts/dot_products.h"
#include "experts/gemm_kernel.h"
#include "trimtab/tensor.h"

namespace trimtab {
namespace {

typedef int Ints128 __attribute__((vector_size(16)));

// Four floats as the compiler's own vector type: SSE2, NEON, or whatever else the baseline has.
struct Scalar {
  typedef float Reg __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kMaxRows = tile_rows(4);
  static constexpr int kMaxPairRows = 2;

  static Reg set(float x) { return Reg{x, x, x, x}; }
  static Reg broadcast(const float* p) { return set(*p); }
  static Reg load(const float* p) { return Reg{p[0], p[1], p[2], p[3]}; }
  static Reg load_f16(const std::byte* p) {
    f16_t halves[kLanes];
    std::memcpy(halves, p, sizeof(halves));
    return Reg{to_float(halves[0]), to_float(halves[1]), to_float(halves[2]), to_float(halves[3])};
  }
  static Ints128 load_pairs(const std::byte* p) {
    Ints128 pairs;
    std::memcpy(&pairs, p, sizeof(pairs));
    return pairs;
  }
  static Ints128 set_pairs(const std::byte* p) {
    int pair;
    std::memcpy(&pair, p, sizeof(pair));
    return Ints128{pair, pair, pair, pair};
  }
  static Reg low(Ints128 pairs) { return reinterpret_cast<Reg>(pairs << 16); }
  static Reg high(Ints128 pairs) {
    return reinterpret_cast<Reg>(pairs & static_cast<int>(0xffff0000U));
  }
  static void store(float* p, Reg x) {
    for (int i = 0; i < kLanes; ++i) p[i] = x[i];
  }
  static void store(uint16_t* p, Reg x) {
    for (int i = 0; i < kLanes; ++i) p[i] = to_bf16(x[i]).bits;
  }
  static Reg multiply_add(Reg a, Reg b, Reg c) { return a * b + c; }
  static Reg add(Reg a, Reg b) { return a + b; }
  static Reg subtract(Reg a, Reg b) { return a - b; }
  static Reg multiply(Reg a, Reg b) { return a * b; }
  static Reg divide(Reg a, Reg b) { return a / b; }
  static Reg min(Reg a, Reg b) {
    for (int i = 0; i < kLanes; ++i) b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
  }
  static Reg max(Reg a, Reg b) {
    for (int i = 0; i < kLanes; ++i) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
  }
  static Reg exp(Reg x) {
    for (int i = 0; i < kLanes; ++i) x[i] = std::exp(x[i]);
    return x;
  }
};

// Byte by byte.
struct PlainBytes {
  using Ints = Ints128;
  struct Bytes {
    uint8_t at[16];
  };
  struct Row {
    int at[4];
  };
  static constexpr int kMaxRows = 2;
  static Ints set_int(int x) { return Ints{x, x, x, x}; }
  static Ints load_ints(const int32_t* p) { return Ints{p[0], p[1], p[2], p[3]}; }
  static Ints multiply(Ints a, Ints b) { return a * b; }
  static Scalar::Reg to_float(Ints x) { return __builtin_convertvector(x, Scalar::Reg); }
  static Bytes load_bytes(const std::byte* p) {
    Bytes bytes;
    std::memcpy(&bytes, p, sizeof(bytes));
    return bytes;
  }
  static void load_nibbles(const std::byte* p, Bytes& even, Bytes& odd) {
    const Bytes both = load_bytes(p);
    for (int i = 0; i < 16; ++i) {
      even.at[i] = both.at[i] & 0x0f;
      odd.at[i] = static_cast<uint8_t>(both.at[i] >> 4);
    }
  }
  static Row broadcast(const std::byte* x) {
    Row row;
    for (int i = 0; i < 4; ++i) row.at[i] = static_cast<int8_t>(x[i]);
    return row;
  }
  static Ints dot(Ints sum, const Bytes& w, const Row& x) {
    for (int c = 0; c < 4; ++c) {
      for (int i = 0; i < 4; ++i) sum[c] += w.at[4 * c + i] * x.at[i];
    }
    return sum;
  }
};

}  // namespace

const GemmKernels kScalarKernels = make_kernels<Scalar, PairDot<Scalar>, PlainBytes>("scalar");

// erfc keeps the digits of small results at negative x that 1 + erf cancels. -40 stands for all
// below: the result is 0.
float gelu(float x) noexcept {
  const double bounded = x < -40.0F ? -40.0 : static_cast<double>(x);
  return static_cast<float>(0.5 * bounded * std::erfc(-bounded * 0.70710678118654752));
}

}  // namespace trimtab
