// SPDX-License-Identifier: Apache-2.0
// `trimtab pack` writes a model's weights as the kernels read them, so that loading packs nothing.
#pragma once

#include <string>

#include "cli/options/weight_formats.h"

namespace trimtab::cli {

struct PackOptions {
  std::string model, out;  // folders
  WeightFormatOptions formats;
  int threads = 0;  // 0: one on every core
  bool json = false;
};

// Writes the folder, and one line about it to standard output. Throws Error.
void pack(const PackOptions& options);

void add_pack(Command& program, PackOptions& options);

}  // namespace trimtab::cli
