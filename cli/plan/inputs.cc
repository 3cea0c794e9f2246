// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/inputs.h"

#include <fmt/format.h>

#include <optional>

#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

std::optional<FileFormat> parse_format(const std::string& name) {
  if (name.empty()) return std::nullopt;
  return file_format(name);
}

bool counts_from_zero(const std::vector<int>& ids) {
  return ids.empty() || ids.back() + 1 == static_cast<int>(ids.size());
}

}  // namespace

Recording read_loads(const LoadsOptions& options) {
  RecordingOptions how;
  how.format = parse_format(options.format);
  how.num_experts = options.experts;
  how.tokens_per_step = options.tokens_per_step;
  std::optional<PlacementFile> under;
  if (!options.recorded_under.empty()) {
    under = read_placement_for(options.recorded_under, "", 0, nullptr);
    how.recorded_under = &under->placement;
  }
  std::vector<Recording> parts;
  for (const std::string& file : options.files) parts.push_back(read_recording(file, how));
  Recording loads = parts.size() == 1 ? std::move(parts[0]) : merge_recordings(parts);
  if (options.tokens_per_step > 0 && loads.format != FileFormat::kTopK) {
    throw UsageError(fmt::format("--tokens-per-step: {} is {}, and only top-k text is cut by it",
                                 loads.file, name(loads.format)));
  }
  if (under && loads.format != FileFormat::kVllmAscend) {
    throw UsageError(fmt::format("--recorded-under: {} is {}, which counts experts and no slots",
                                 loads.file, name(loads.format)));
  }
  if (under) loads.layer_ids = under->layer_ids;
  if (!options.phase.empty())
    loads = steps_of_phase(loads, options.phase == "prefill" ? Phase::kPrefill : Phase::kDecode);
  if (loads.load.num_steps == 0) throw InvalidArgument(fmt::format("{}: has no step", loads.file));
  return loads;
}

PlacementOptions placement_options(const std::string& file, const std::string& format, int ranks) {
  const DetectedFile found = format.empty()
                                 ? detect_format(file)
                                 : DetectedFile{file_format(format), FileKind::kPlacement};
  const bool says_ranks =
      found.format == FileFormat::kJson || found.format == FileFormat::kVllmAscend;
  if (ranks == 0 && !says_ranks && found.kind != FileKind::kLoads) {
    throw InvalidArgument(fmt::format("{}: {} does not say how many ranks there are; give --ranks",
                                      file, name(found.format)));
  }
  PlacementOptions options;
  if (!format.empty())
    options.format = found.format;  // else the reader detects it, and the kind of the content
  options.num_ranks = ranks;
  return options;
}

PlacementFile read_placement_for(const std::string& file, const std::string& format, int ranks,
                                 const Recording* loads) {
  PlacementOptions how = placement_options(file, format, ranks);
  if (loads != nullptr) how.num_experts = loads->load.num_experts;
  PlacementFile placement = read_placement(file, how);
  if (loads != nullptr && placement.placement.num_layers() != loads->load.num_layers) {
    throw InvalidArgument(fmt::format("{} has {} layers, {} has {}", file,
                                      placement.placement.num_layers(), loads->file,
                                      loads->load.num_layers));
  }
  return placement;
}

const TokenSample* tokens_of(Recording& loads, int num_ranks) {
  if (!loads.tokens) return nullptr;
  if (loads.tokens->num_ranks != num_ranks) loads.tokens->source_rank.clear();
  return &*loads.tokens;
}

std::vector<int> common_layer_ids(const Recording& loads, const PlacementFile& placement,
                                  const std::string& file) {
  if (counts_from_zero(placement.layer_ids)) return loads.layer_ids;
  if (counts_from_zero(loads.layer_ids) || loads.layer_ids == placement.layer_ids)
    return placement.layer_ids;
  size_t i = 0;
  while (loads.layer_ids[i] == placement.layer_ids[i]) ++i;
  throw InvalidArgument(fmt::format("{} has layer {} where {} has layer {}", file,
                                    placement.layer_ids[i], loads.file, loads.layer_ids[i]));
}

void check_slots(int ranks, int slots_per_rank) {
  constexpr int64_t kMostSlots = 1 << 20;  // as experts in the formats
  if (int64_t{ranks} * slots_per_rank <= kMostSlots) return;
  throw InvalidArgument(
      fmt::format("{} ranks x {} slots are more than {} slots", ranks, slots_per_rank, kMostSlots));
}

}  // namespace trimtab::cli
