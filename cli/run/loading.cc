// SPDX-License-Identifier: Apache-2.0
#include "cli/run/loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "trimtab/packed_model.h"

namespace trimtab::cli {

LoadingLine::LoadingLine(std::string what, LinePrinter& printer)
    : what_(std::move(what)), printer_(printer), start_(std::chrono::steady_clock::now()) {
  printer_.status(what_);
}

double LoadingLine::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void LoadingLine::show(const LoadProgress& progress) {
  if (!printer_.wants_status()) return;
  const double bytes = static_cast<double>(progress.bytes);
  printer_.status(fmt::format("{}: {} of {} layers, {:.2f} GB, {:.0f} MB/s", what_, progress.layers,
                              progress.num_layers, bytes / 1e9,
                              bytes / 1e6 / std::max(seconds(), 1e-9)));
}

std::shared_ptr<const DecoderWeights> load_decoder_weights(
    const ModelOptions& options, const ModelConfig& config, const SafeTensors& tensors,
    const Placement& placement, const Ranks& ranks, LinePrinter& printer, LoadOptions how) {
  // A process keeps the experts of its own slots alone.
  std::vector<int> held;
  if (ranks.are_processes()) held.push_back(ranks.self());
  how.ranks = held;
  how.threads = ranks.threads_here(options.threads_per_rank);
  std::optional<LoadingLine> line;
  if (!how.outline) {
    line.emplace("loading " + options.model, printer);
    how.progress = [&](const LoadProgress& progress) { line->show(progress); };
  }
  return DecoderWeights::load(
      tensors, config, decoder_formats(options.formats, packed_formats(tensors)), placement, how);
}

}  // namespace trimtab::cli
