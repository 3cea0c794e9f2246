// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "experts/gemm_kernel.h"
#include "trimtab/tensor.h"

namespace trimtab {
namespace {

// Four floats as the compiler's own vector type: SSE2, NEON, or whatever else the baseline has.
struct Scalar {
  typedef float Reg __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kVecs = 2;
  static constexpr int kMaxRows = 4;

  static Reg set(float x) { return Reg{x, x, x, x}; }
  static Reg load(const float* p) { return Reg{p[0], p[1], p[2], p[3]}; }
  static Reg load(const uint16_t* p) { return Reg{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}; }
  static Reg broadcast(const float* p) { return set(*p); }
  static Reg broadcast(const uint16_t* p) { return set(widen(*p)); }
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

 private:
  static float widen(uint16_t bits) { return to_float(bf16_t{bits}); }
};

}  // namespace

const GemmKernels kScalarKernels = make_kernels<Scalar>("scalar");

// erfc keeps the digits of small results at negative x that 1 + erf cancels. -40 stands for all below: the result is 0.
float gelu(float x) noexcept {
  const double bounded = x < -40.0F ? -40.0 : static_cast<double>(x);
  return static_cast<float>(0.5 * bounded * std::erfc(-bounded * 0.70710678118654752));
}

}  // namespace trimtab
