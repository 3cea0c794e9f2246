// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// The number of the frequency that turns `rotations` times over the original context.
double yarn_boundary(double rotations, const ModelConfig& config) {
  const double context = config.rope_scaling.original_max_position_embeddings;
  return config.head_dim * std::log(context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(double{config.rope_theta}));
}

// The factor for sines and cosines that the paper recommends; weight is DeepSeek's mscale.
double yarn_magnitude(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

// Fast frequencies stay, slow ones are divided by the factor, and between the two boundaries they
// are blended.
void stretch_yarn(const ModelConfig& config, Rope& rope) {
  const RopeScaling& s = config.rope_scaling;
  double low = yarn_boundary(s.beta_fast, config);
  double high = yarn_boundary(s.beta_slow, config);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, config.head_dim - 1.0);
  if (low == high) high += 0.001;
  double i = 0;
  for (float& frequency : rope.inverse_frequencies) {
    const double stretched = std::clamp((i++ - low) / (high - low), 0.0, 1.0);
    frequency = static_cast<float>(frequency * (stretched / s.factor + (1.0 - stretched)));
  }
  if (s.attention_factor) {
    rope.scale = *s.attention_factor;
  } else if (s.mscale > 0.0F && s.mscale_all_dim > 0.0F) {
    rope.scale = static_cast<float>(yarn_magnitude(s.factor, s.mscale) /
                                    yarn_magnitude(s.factor, s.mscale_all_dim));
  } else {
    rope.scale = static_cast<float>(yarn_magnitude(s.factor, 1.0));
  }
}

// Long wavelengths are divided by the factor, short ones stay, and those between are blended.
void stretch_llama3(const RopeScaling& s, Rope& rope) {
  const double context = s.original_max_position_embeddings;
  for (float& frequency : rope.inverse_frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    const double kept = std::clamp((context / wavelength - s.low_freq_factor) /
                                       (double{s.high_freq_factor} - s.low_freq_factor),
                                   0.0, 1.0);
    frequency = static_cast<float>(frequency * ((1.0 - kept) / s.factor + kept));
  }
}

}  // namespace

Rope make_rope(const ModelConfig& config) {
  Rope rope;
  rope.inverse_frequencies.resize(config.head_dim / 2);
  for (int i = 0; i < config.head_dim / 2; ++i) {
    const double exponent = 2.0 * i / config.head_dim;
    rope.inverse_frequencies[i] =
        static_cast<float>(1.0 / std::pow(double{config.rope_theta}, exponent));
  }
  if (config.rope_type == "linear") {
    for (float& frequency : rope.inverse_frequencies) frequency /= config.rope_scaling.factor;
  } else if (config.rope_type == "yarn") {
    stretch_yarn(config, rope);
  } else if (config.rope_type == "llama3") {
    stretch_llama3(config.rope_scaling, rope);
  } else if (config.rope_type != "default") {
    throw InvalidArgument(
        cat("the decoder supports the rope types default, linear, yarn and "
            "llama3; this model has ",
            config.rope_type));
  }
  return rope;
}

}  // namespace trimtab
