// SPDX-License-Identifier: Apache-2.0
// Activations on vectors of floats; V is the instruction set as in gemm_kernel.h. A lane's result
// does not depend on the lane. NaN stays NaN; infinities give the limits. silu is within 3 ulp. In
// the others the rounding of the sigmoid's argument s weighs |s| times as much: 40 ulp of
// gelu_tanh(-5). Below 1e-35 in magnitude results may be 0. (Bounds: activation_test.cc.)
#pragma once

#include "experts/gemm.h"

namespace trimtab {
namespace {

// e^x for instruction sets with fused multiply-add, below 2 ulp, subnormals included: x = n ln2 +
// r, a polynomial for e^r (coefficients: Cephes, expf.c), times 2^n.
template <class V>
typename V::Reg exp_polynomial(typename V::Reg x) {
  // Beyond these bounds the result is 0 or infinite anyway. max and min give back x if it is NaN.
  x = V::min(V::set(110.0F), V::max(V::set(-110.0F), x));
  const auto n = V::round(V::multiply(x, V::set(1.44269504F)));
  auto r = V::multiply_add(n, V::set(-0.693359375F), x);
  r = V::multiply_add(n, V::set(2.12194440e-4F), r);
  auto p = V::set(1.9875691500e-4F);
  p = V::multiply_add(p, r, V::set(1.3981999507e-3F));
  p = V::multiply_add(p, r, V::set(8.3334519073e-3F));
  p = V::multiply_add(p, r, V::set(4.1665795894e-2F));
  p = V::multiply_add(p, r, V::set(1.6666665459e-1F));
  p = V::multiply_add(p, r, V::set(5.0000001201e-1F));
  p = V::multiply_add(p, V::multiply(r, r), r);
  return V::scale(V::add(p, V::set(1.0F)), n);
}

// x * sigmoid(s). The lowest x is the lowest finite one, so that -inf gives -0, not -inf / inf.
template <class V>
typename V::Reg times_sigmoid(typename V::Reg x, typename V::Reg s) {
  const auto e = V::exp(V::subtract(V::set(0.0F), s));
  return V::divide(V::max(V::set(-3.40282347e+38F), x), V::add(V::set(1.0F), e));
}

template <class V>
typename V::Reg silu(typename V::Reg x) {
  return times_sigmoid<V>(x, x);
}

template <class V>
typename V::Reg gelu_exact(typename V::Reg x) {
  alignas(64) float lanes[V::kLanes];
  V::store(lanes, x);
  for (float& lane : lanes) lane = gelu(lane);
  return V::load(lanes);
}

// x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
template <class V>
typename V::Reg gelu_tanh(typename V::Reg x) {
  const auto x2 = V::multiply(x, x);
  const auto u2 =
      V::multiply(x, V::multiply_add(x2, V::set(0.0713548162726F), V::set(1.59576912161F)));
  return times_sigmoid<V>(x, u2);
}

// The clamps let NaN through.
template <class V>
typename V::Reg clamp(typename V::Reg x, float limit) {
  return V::min(V::set(limit), V::max(V::set(-limit), x));
}

template <class V>
typename V::Reg swiglu_clamp(const PanelTask& task, typename V::Reg gate, typename V::Reg up) {
  const auto g = V::min(V::set(task.limit), gate);
  const auto u = V::add(clamp<V>(up, task.limit), V::set(task.beta));
  return V::multiply(u, times_sigmoid<V>(g, V::multiply(V::set(task.alpha), g)));
}

template <class V>
typename V::Reg swiglu_step(const PanelTask& task, typename V::Reg gate, typename V::Reg up) {
  return V::multiply(V::min(V::set(task.limit), silu<V>(gate)), clamp<V>(up, task.limit));
}

// In the order of ActivationKind.
enum ActivationNumber {
  kSiluNumber,
  kGeluNumber,
  kGeluTanhNumber,
  kSwigluClampNumber,
  kSwigluStepNumber
};

template <class V>
typename V::Reg activate(const PanelTask& task, typename V::Reg gate, typename V::Reg up) {
  switch (task.activation) {
    case kGeluNumber:
      return V::multiply(gelu_exact<V>(gate), up);
    case kGeluTanhNumber:
      return V::multiply(gelu_tanh<V>(gate), up);
    case kSwigluClampNumber:
      return swiglu_clamp<V>(task, gate, up);
    case kSwigluStepNumber:
      return swiglu_step<V>(task, gate, up);
    default:
      return V::multiply(silu<V>(gate), up);
  }
}

}  // namespace
}  // namespace trimtab
