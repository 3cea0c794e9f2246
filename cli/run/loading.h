// SPDX-License-Identifier: Apache-2.0
// Loads the weights of a model for a command, and shows how far that has come.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "cli/output/line_printer.h"
#include "cli/run/model_options.h"
#include "cli/run/ranks.h"
#include "trimtab/decoder.h"

namespace trimtab::cli {

class LoadingLine {
 public:
  // what: the beginning of the line, as "loading MODEL". printer: outlives it.
  LoadingLine(std::string what, LinePrinter& printer);
  void show(const LoadProgress& progress);
  double seconds() const;  // since it was made

 private:
  const std::string what_;
  LinePrinter& printer_;
  const std::chrono::steady_clock::time_point start_;
};

// DecoderWeights::load() in the formats of the options, or those of a packed model, with the
// experts of the ranks of this process.
std::shared_ptr<const DecoderWeights> load_decoder_weights(
    const ModelOptions& options, const ModelConfig& config, const SafeTensors& tensors,
    const Placement& placement, const Ranks& ranks, LinePrinter& printer, LoadOptions how = {});

}  // namespace trimtab::cli
