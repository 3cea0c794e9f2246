// SPDX-License-Identifier: Apache-2.0
// Shows how far the loading of weights has come.
#pragma once

#include <chrono>
#include <string>

#include "cli/output/line_printer.h"
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

}  // namespace trimtab::cli
