// SPDX-License-Identifier: Apache-2.0
// What a run gives for each prompt, and how it is shown.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cli/run/prompts.h"
#include "cli/run/run_result.h"
#include "trimtab/generate.h"

namespace trimtab::cli {

// How the outputs of a run are to be read.
struct OutputRules {
  bool has_text = true;                     // token ids are bytes
  std::vector<std::vector<int32_t>> stops;  // the text ends before them
};

Output output_of(const Prompt& prompt, const Generation& generation, const OutputRules& rules);

// The lines that show prompt and output number i (from 0) in the text report.
std::string lines_of(const Output& output, int64_t i, bool has_text);

// Prints these lines for each prompt while its output grows, in the order of the prompts: what
// comes for a later one waits until those before it have ended.
class OutputStream {
 public:
  OutputStream(std::span<const Prompt> prompts, const OutputRules& rules);

  // As GenerateOptions::grown.
  void grow(int64_t prompt, const Generation& so_far, bool ended);
  // Prints what has not been printed. outputs: those of all prompts.
  void finish(std::span<const Output> outputs);

 private:
  struct Shown {
    std::string lines;   // so far; whole once ended
    size_t printed = 0;  // bytes of them
    bool ended = false;
  };

  void print_what_is_due();

  const std::span<const Prompt> prompts_;
  const OutputRules rules_;
  size_t longest_stop_ = 0;
  std::mutex mutex_;
  std::vector<Shown> shown_;
  size_t next_ = 0;  // the prompt whose lines are being printed
};

}  // namespace trimtab::cli
