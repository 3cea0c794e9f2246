// SPDX-License-Identifier: Apache-2.0
#include "cli/run/loading.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace trimtab::cli
