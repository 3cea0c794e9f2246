// SPDX-License-Identifier: Apache-2.0
// The options of every command that runs a model: which one, how it is kept, and on which ranks.
#pragma once

#include <optional>
#include <string>

#include "cli/options/command.h"
#include "cli/options/weight_formats.h"
#include "cli/run/ranks.h"
#include "trimtab/dispatcher.h"
#include "trimtab/dispatcher_kind.h"

namespace trimtab::cli {

struct ModelOptions {
  std::string model;  // directory
  int ranks = 0;      // 0: not said; see Ranks
  std::string dispatcher = "auto";
  std::string wire;  // one of wire_types(); empty: rows as experts take them, results in f32
  WeightFormatOptions formats;
  std::string kv = "f32";          // a KvFormat by name
  int threads_per_rank = 0;        // 0: as many as there are cores for it
  double row_budget = kRowBudget;  // times the level load; 0: none
  int timeout = 60;                // seconds
};

// A decoder takes rows sorted by expert, and whole outputs.
bool is_for_decoders(const DispatcherKind& kind);

// Adds MODEL and --ranks, and all else.
void add_model(Command& command, ModelOptions& options);
void add_model_settings(Command& command, ModelOptions& options);

// DecoderOptions::wire.
std::optional<DType> wire_of(const ModelOptions& options);

// The threads of a rank: as the options say, or as many as there are cores. Throws InvalidArgument
// where all ranks would have too many.
int threads_per_rank(const ModelOptions& options, const Ranks& ranks);

}  // namespace trimtab::cli
