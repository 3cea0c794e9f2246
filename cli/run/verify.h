// SPDX-License-Identifier: Apache-2.0
// `trimtab verify` compares the files of a packed model with their checksums.
#pragma once

#include <string>

#include "cli/options/command.h"

namespace trimtab::cli {

struct VerifyOptions {
  std::string model;  // folder
  int threads = 0;    // 0: one on every core
  bool json = false;
};

// Writes one line about the files to standard output. Throws Error where they are damaged.
void verify(const VerifyOptions& options);

void add_verify(Command& program, VerifyOptions& options);

}  // namespace trimtab::cli
