// SPDX-License-Identifier: Apache-2.0
// The options that say how a model's weights are kept.
#pragma once

#include <optional>
#include <string>

#include "cli/options/command.h"
#include "trimtab/decoder.h"

namespace trimtab::cli {

// Names of formats as they were given; empty: not said.
struct WeightFormatOptions {
  std::string dtype;    // "f32", "bf16" or "auto"
  std::string weights;  // a WeightFormat, of all linear maps
  std::string experts;  // a WeightFormat

  bool given() const { return !dtype.empty() || !weights.empty() || !experts.empty(); }
};

// Adds --dtype, --weights and --experts.
void add_weight_formats(Command& command, WeightFormatOptions& options);

// Replaces the dtype "auto" by that of the checkpoint's embedding, which no checkpoint quantises;
// f16 by f32, which holds it exactly; for a packed model by nothing, so that it is as it was
// packed.
void find_dtype(WeightFormatOptions& options, const SafeTensors& tensors,
                const ModelConfig& config);

// What the options ask for. otherwise: the formats of a packed model, where nothing is said; none:
// f32.
DecoderFormats decoder_formats(const WeightFormatOptions& options,
                               const std::optional<DecoderFormats>& otherwise = std::nullopt);

}  // namespace trimtab::cli
