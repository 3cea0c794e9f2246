// SPDX-License-Identifier: Apache-2.0
#include "recordings/checked_recording.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/cat.h"
#include "recordings/ids.h"
#include "recordings/json_table.h"
#include "trimtab/error.h"
#include "trimtab/table.h"
#include "trimtab/token_recorder.h"

namespace trimtab {
namespace {

std::string shape_text(const Load& load) {
  return cat("[", load.num_steps, ", ", load.num_layers, ", ", load.num_experts, "]");
}

// The number of cells, which may exceed 64 bits.
long double num_cells(int64_t steps, int64_t layers, int64_t experts) {
  const long double rows = steps;
  return rows * layers * experts;
}

}  // namespace

Load zero_load(int64_t num_steps, int64_t num_layers, int64_t num_experts) {
  return {num_steps, static_cast<int>(num_layers), static_cast<int>(num_experts),
          std::vector<int64_t>(cells(num_steps, num_layers, num_experts))};
}

void check_dense(const std::string& file, int64_t steps, int64_t layers, int64_t experts,
                 int64_t records) {
  constexpr long double kFloor = 1 << 20;
  constexpr long double kCellsPerRecord = 1024;
  if (num_cells(steps, layers, experts) > kFloor + kCellsPerRecord * records) {
    throw FormatError(file, -1,
                      cat(records, " records for ", steps, " steps x ", layers, " layers x ",
                          experts, " experts: too few to be a recording; an id must be wrong"));
  }
}

std::string step_rows(const Load& load) {
  const Table<const int64_t> rows(load.counts, load.num_experts);
  std::string out;
  for (int64_t step = 0; step < load.num_steps; ++step) {
    if (step > 0) out += ",\n ";
    append_rows(out, rows.slice(step * load.num_layers, load.num_layers));
  }
  return out;
}

void check_option(const char* what, int64_t value, int64_t max) {
  if (value < 0 || value > max)
    throw InvalidArgument(cat(what, " ", value, ": must be 0 to ", max));
}

Recording dense_recording(const std::string& file, std::span<const int64_t> shape,
                          std::vector<int64_t> counts, const RecordingOptions& options) {
  const bool stepped = shape.size() == 3;
  const int64_t layers = shape[stepped ? 1 : 0];
  const int64_t experts = shape[stepped ? 2 : 1];
  if (layers > kMaxLayers || experts > kMaxExperts) {
    throw FormatError(file, -1,
                      cat(layers, " layers x ", experts, " experts: more than ", kMaxExperts));
  }
  check_option("num_experts", options.num_experts, kMaxExperts);
  if (options.num_experts != 0 && options.num_experts != experts) {
    throw FormatError(
        file, -1, cat("loads of ", experts, " experts; ", options.num_experts, " were asked for"));
  }
  Recording recording;
  recording.file = file;
  recording.load = {stepped ? shape[0] : 1, static_cast<int>(layers), static_cast<int>(experts),
                    std::move(counts)};
  recording.layer_ids = counted_ids<int>(layers);
  recording.step_ids = counted_ids<int64_t>(recording.load.num_steps);
  return checked(std::move(recording));
}

Recording checked(Recording recording) {
  const Load& load = recording.load;
  const Table rows(load.counts, load.num_experts);
  int64_t sum = 0;
  for (int64_t row = 0; row < rows.rows(); ++row) {
    for (int64_t expert = 0; expert < rows.cols(); ++expert) {
      if (!__builtin_add_overflow(sum, rows(row, expert), &sum)) continue;
      throw FormatError(recording.file, -1,
                        cat("the counts up to step ", recording.step_ids[row / load.num_layers],
                            ", layer ", recording.layer_ids[row % load.num_layers], ", expert ",
                            expert, " sum to more than 63 bits hold"));
    }
  }
  return recording;
}

void check_writable(const Recording& recording) {
  const Load& load = recording.load;
  const bool positive = load.num_steps > 0 && load.num_layers > 0 && load.num_experts > 0;
  if (!positive ||
      num_cells(load.num_steps, load.num_layers, load.num_experts) != std::ssize(load.counts) ||
      std::ssize(recording.layer_ids) != load.num_layers ||
      std::ssize(recording.step_ids) != load.num_steps) {
    throw InvalidArgument(cat("loads of shape ", shape_text(load), " with ", load.counts.size(),
                              " counts, ", recording.step_ids.size(), " steps, ",
                              recording.layer_ids.size(), " layers"));
  }
  const auto negative =
      std::find_if(load.counts.begin(), load.counts.end(), [](int64_t n) { return n < 0; });
  if (negative != load.counts.end()) throw InvalidArgument(cat("loads: a count of ", *negative));
  if (!recording.phases.empty() && std::ssize(recording.phases) != load.num_steps) {
    throw InvalidArgument(
        cat("loads: ", recording.phases.size(), " phases of ", load.num_steps, " steps"));
  }
}

Recording steps_of_phase(const Recording& recording, Phase phase) {
  const Load& load = recording.load;
  if (recording.phases.empty() || std::ssize(recording.phases) != load.num_steps) {
    throw InvalidArgument(cat(recording.file,
                              " does not say which of its steps read prompts; the JSON of trimtab "
                              "run --eplb record:FILE.json does"));
  }
  Recording some = recording;
  some.load = {0, load.num_layers, load.num_experts, {}};
  some.step_ids.clear();
  some.tokens.reset();
  for (int64_t step = 0; step < load.num_steps; ++step) {
    if (recording.phases[cells(step)] != phase) continue;
    ++some.load.num_steps;
    some.step_ids.push_back(recording.step_ids[cells(step)]);
    for (int layer = 0; layer < load.num_layers; ++layer) {
      const auto counts = load.at(step, layer);
      some.load.counts.insert(some.load.counts.end(), counts.begin(), counts.end());
    }
  }
  if (some.load.num_steps == 0) {
    throw InvalidArgument(cat(recording.file, " has no step of phase ",
                              phase == Phase::kPrefill ? "prefill" : "decode"));
  }
  some.phases.assign(cells(some.load.num_steps), phase);
  return some;
}

namespace {

// The samples of all parts, each token with the number of its part; none when a part has none.
std::optional<TokenSample> merged_tokens(std::span<const Recording> parts) {
  const auto fits = [&](const Recording& part) {
    return part.tokens && part.tokens->source_rank.empty() &&
           part.tokens->top_k == parts[0].tokens->top_k &&
           part.tokens->is_of_pairs == parts[0].tokens->is_of_pairs;
  };
  if (!parts[0].tokens || !std::ranges::all_of(parts, fits)) return std::nullopt;
  std::vector<TokenSample> samples;
  for (const Recording& part : parts) samples.push_back(*part.tokens);
  return merge_tokens(samples);
}

}  // namespace

Recording merge_recordings(std::span<const Recording> parts) {
  if (parts.empty()) throw InvalidArgument("no recordings to merge");
  Recording sum = parts.front();
  for (const Recording& part : parts) check_writable(part);
  for (const Recording& part : parts.subspan(1)) {
    const std::string both = cat("can't merge ", sum.file, " and ", part.file, ": ");
    if (shape_text(part.load) != shape_text(sum.load)) {
      throw InvalidArgument(cat(both, "[steps, layers, experts] are ", shape_text(sum.load),
                                " and ", shape_text(part.load)));
    }
    if (part.layer_ids != sum.layer_ids) throw InvalidArgument(both + "their layers differ");
    if (part.step_ids != sum.step_ids) throw InvalidArgument(both + "their steps differ");
    if (part.phases != sum.phases) throw InvalidArgument(both + "the phases of their steps differ");
    for (int64_t i = 0; i < std::ssize(sum.load.counts); ++i) {
      int64_t& count = sum.load.counts[i];
      if (__builtin_add_overflow(count, part.load.counts[i], &count))
        throw InvalidArgument(both + "a sum exceeds 63 bits");
    }
  }
  if (parts.size() > 1) sum.tokens = merged_tokens(parts);
  try {
    return checked(std::move(sum));
  } catch (const FormatError& error) {
    throw InvalidArgument(error.what());
  }
}

}  // namespace trimtab
