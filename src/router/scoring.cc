// SPDX-License-Identifier: Apache-2.0
#include "router/scoring.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/portable_math.h"

namespace trimtab {
namespace {

float sqrt_softplus(float x) {
  x = std::min(x, std::numeric_limits<float>::max());
  return std::sqrt(std::max(x, 0.0F) + log1p_f32(exp_f32(-std::fabs(x))));
}

}  // namespace

void softmax(std::span<const float> x, float* out) {
  const size_t n = x.size();
  float top = x[0];
  for (size_t i = 1; i < n; ++i) top = std::max(top, x[i]);
  for (size_t i = 0; i < n; ++i) out[i] = exp_f32(x[i] == top ? 0.0F : x[i] - top);
  // In double, so that thousands of experts cost no accuracy.
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) sum += out[i];
  const float divisor = static_cast<float>(sum);
  for (size_t i = 0; i < n; ++i) out[i] /= divisor;
}

void score(Scoring scoring, std::span<const float> logits, float* scores) {
  const size_t n = logits.size();
  switch (scoring) {
    case Scoring::kSoftmax:
      softmax(logits, scores);
      return;
    case Scoring::kSigmoid:
      for (size_t i = 0; i < n; ++i) scores[i] = 1.0F / (1.0F + exp_f32(-logits[i]));
      return;
    case Scoring::kSqrtSoftplus:
      for (size_t i = 0; i < n; ++i) scores[i] = sqrt_softplus(logits[i]);
      return;
  }
}

}  // namespace trimtab
