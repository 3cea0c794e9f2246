// SPDX-License-Identifier: Apache-2.0
// The options that several planning commands share: the loads and their format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command.h"

namespace trimtab::cli {

struct LoadsOptions {
  std::vector<std::string> files;   // what several ranks recorded of the same steps is summed
  std::string format;               // empty: detected
  int experts = 0;                  // 0: the file says
  int64_t tokens_per_step = 0;      // of top-k text; 0: a step a sample
  std::string phase = {};           // "prefill" or "decode": only these steps; empty: all
  std::string recorded_under = {};  // file of a placement, for counts of slots; empty: none
};

constexpr int kMostSizes = 1 << 20;  // of ranks, slots, experts: as in the formats

// Adds the files as an argument that must be given.
void add_load_files(Command& command, LoadsOptions& loads, const std::string& name);
// Adds the option that names their format.
Option add_loads_format(Command& command, LoadsOptions& loads, const std::string& name);
// Adds --experts, --tokens-per-step, --phase and --recorded-under.
std::vector<Option> add_sizes_of_loads(Command& command, LoadsOptions& loads);

// The names of the formats of loads, of placements, and all.
std::vector<std::string> load_formats();
std::vector<std::string> placement_formats();
std::vector<std::string> all_formats();

// Adds the options that more than one planning command has.
Option add_ranks(Command& command, int& ranks, const std::string& about);
void add_current(Command& command, std::string& file, std::string& format);
void add_report(Command& command, std::string& file);
void add_json(Command& command, bool& json);

}  // namespace trimtab::cli
