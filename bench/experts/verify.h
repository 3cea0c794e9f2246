// SPDX-License-Identifier: Apache-2.0
// Results against the reference, before anything is timed: the first and the last rows and columns
// and some between. Each throws Error with the place, the values and the tolerance; `what` names
// the call for it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "bench/experts/weight_dtype.h"

namespace trimtab::bench {

// y = x W^T.
void verify_linear(const WeightDType& dtype, const MatrixSource& weight, ConstRows x, ConstRows y,
                   const std::string& what);

// act = silu(x W_gate^T) * (x W_up^T).
void verify_gated(const WeightDType& dtype, const MlpSource& mlp, ConstRows x, ConstRows act,
                  const std::string& what);

// out: [tokens, hidden], the weighted sum over each token's picks; ids, weights: [tokens, top_k].
void verify_layer(const WeightDType& dtype, const std::function<MlpSource(int32_t)>& mlp_of,
                  ConstRows x, std::span<const int32_t> ids, std::span<const float> weights,
                  int top_k, ConstRows out, const std::string& what);

}  // namespace trimtab::bench
