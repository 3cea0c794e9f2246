// SPDX-License-Identifier: Apache-2.0
#include "cli/options/weight_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trimtab/packed_model.h"

namespace trimtab::cli {

void add_weight_formats(Command& command, WeightFormatOptions& options) {
  command
      .text("--dtype", options.dtype,
            "How weights are kept and rounded: f32, bf16, or auto, as the checkpoint has them (f16 "
            "as f32) [f32, or as a packed model has them]")
      .one_of({"f32", "bf16", "auto"})
      .type("NAME");
  const auto is_format = [](const std::string& text) { parse_weight_format(text); };
  command
      .text("--weights", options.weights,
            "How attention, dense layers, the output head and experts are kept: a format of "
            "--experts [as --dtype]; the router stays in f32, the embedding as in the checkpoint")
      .parsed_by(is_format)
      .type("FORMAT");
  command
      .text("--experts", options.experts,
            fmt::format("How experts are kept: {} (N: inputs that share a scale); by default as "
                        "--weights if given, as the checkpoint has them if it is quantised, else "
                        "as --dtype",
                        fmt::join(weight_format_names(), ", ")))
      .parsed_by(is_format)
      .type("FORMAT");
}

void find_dtype(WeightFormatOptions& options, const SafeTensors& tensors,
                const ModelConfig& config) {
  if (options.dtype != "auto") return;
  if (packed_formats(tensors)) {
    options.dtype.clear();
    return;
  }
  const DType dtype = tensors.at(config.tensor_prefix + "embed_tokens.weight").dtype;
  options.dtype = dtype == DType::kBF16 ? "bf16" : "f32";
}

DecoderFormats decoder_formats(const WeightFormatOptions& options,
                               const std::optional<DecoderFormats>& otherwise) {
  DecoderFormats formats = otherwise.value_or(DecoderFormats(DType::kF32));
  if (!options.dtype.empty()) {
    formats.dtype = options.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  }
  if (!options.weights.empty())
    formats.linear = formats.experts = parse_weight_format(options.weights);
  if (!options.experts.empty()) formats.experts = parse_weight_format(options.experts);
  return formats;
}

}  // namespace trimtab::cli
