// SPDX-License-Identifier: Apache-2.0
// Plain C++ in place of an instruction set.
#pragma once

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

}  // namespace
}  // namespace trimtab
