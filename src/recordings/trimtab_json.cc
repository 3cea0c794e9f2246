// SPDX-License-Identifier: Apache-2.0
// Trimtab's own JSON. It holds all of a Recording or a PlacementFile, and the arrays under the keys
// for which SGLang looks.
#include <map>
#include <optional>

#include "base/cat.h"
#include "base/quoted.h"
#include "recordings/checked_placement.h"
#include "recordings/checked_recording.h"
#include "recordings/ids.h"
#include "recordings/json_table.h"
#include "recordings/json_tokens.h"
#include "recordings/readers.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr std::string_view kLoads = "trimtab_loads";
constexpr std::string_view kPlacement = "trimtab_placement";

struct Fields {
  std::map<std::string, int64_t> sizes;  // num_...
  std::vector<int64_t> layer_ids;
  std::vector<int64_t> step_ids;
  std::vector<int64_t> phases;  // as Phase counts them
  std::vector<int64_t> slots_per_rank;
  std::map<std::string, std::string> metadata;
  std::optional<IntTable> table;
  std::optional<JsonTokens> tokens;
};

std::map<std::string, std::string> read_metadata(JsonReader& json) {
  std::map<std::string, std::string> metadata;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) metadata[key] = json.string();
  return metadata;
}

std::vector<int64_t> read_list(JsonReader& json, const std::string& what, int64_t max) {
  return read_table(json, what, 1, 1, max).values;
}

std::vector<int64_t> read_ids(JsonReader& json, const std::string& what, int64_t max) {
  const int64_t at = json.offset();
  std::vector<int64_t> ids = read_list(json, what, max);
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] <= ids[i - 1])
      json.fail(at, cat(what, ": ", ids[i], " after ", ids[i - 1], "; must ascend"));
  }
  return ids;
}

Fields read_fields(const Content& content, std::string_view format, const char* table) {
  const std::string& file = content.file();
  JsonReader json(content.text(), file);
  Fields fields;
  std::string key;
  FormatKeys keys(format);
  json.begin_object();
  while (json.next_key(key)) {
    const int64_t at = json.offset();
    if (keys.read(json, key, at)) continue;
    if (key == table) {
      fields.table = read_table(json, key, 2, format == kLoads ? 3 : 2,
                                format == kLoads ? kMaxCount : kMaxExpertId);
    } else if (key == "layer_ids") {
      fields.layer_ids = read_ids(json, key, kMaxLayerId);
    } else if (key == "step_ids" && format == kLoads) {
      fields.step_ids = read_ids(json, key, kMaxCount);
    } else if (key == "phases" && format == kLoads) {
      fields.phases = read_list(json, key, 1);
    } else if (key == "tokens" && format == kLoads) {
      fields.tokens = read_json_tokens(json);
    } else if (key == "slots_per_rank" && format == kPlacement) {
      fields.slots_per_rank = read_list(json, key, kMaxExperts);
    } else if (key == "metadata") {
      fields.metadata = read_metadata(json);
    } else if (key == "num_layers" || key == "num_experts" ||
               key == (format == kLoads ? "num_steps" : "num_ranks")) {
      fields.sizes[key] = json.integer(1, kMaxCount);
    } else {
      json.fail(at, cat("unknown key ", json_quoted(key)));
    }
  }
  json.end();
  keys.check(file);
  if (!fields.table) throw FormatError(file, 0, cat("no key ", json_quoted(table)));
  return fields;
}

void check_size(const std::string& file, const Fields& fields, const char* key, int64_t found) {
  const auto size = fields.sizes.find(key);
  if (size != fields.sizes.end() && size->second != found) {
    throw FormatError(file, fields.table->at,
                      cat(key, " is ", size->second, "; the table has ", found));
  }
}

std::vector<int> narrow(const std::vector<int64_t>& values) {
  return {values.begin(), values.end()};
}

std::string metadata_text(const std::map<std::string, std::string>& metadata) {
  std::string out = "{";
  for (const auto& [key, value] : metadata)
    out += cat(out.size() > 1 ? ", " : "", json_quoted(key), ": ", json_quoted(value));
  return out + "}";
}

}  // namespace

Recording read_json_loads(const Content& content, const RecordingOptions& options) {
  const std::string& file = content.file();
  Fields fields = read_fields(content, kLoads, "logical_count");
  const int64_t at = fields.table->at;
  Recording recording =
      dense_recording(file, fields.table->shape, std::move(fields.table->values), options);
  check_size(file, fields, "num_steps", recording.load.num_steps);
  check_size(file, fields, "num_layers", recording.load.num_layers);
  check_size(file, fields, "num_experts", recording.load.num_experts);
  if (!fields.layer_ids.empty()) {
    if (fields.layer_ids.size() != recording.layer_ids.size()) {
      throw FormatError(
          file, at,
          cat(fields.layer_ids.size(), " layer_ids for ", recording.layer_ids.size(), " layers"));
    }
    recording.layer_ids = narrow(fields.layer_ids);
  }
  if (!fields.step_ids.empty()) {
    if (fields.step_ids.size() != recording.step_ids.size()) {
      throw FormatError(
          file, at,
          cat(fields.step_ids.size(), " step_ids for ", recording.step_ids.size(), " steps"));
    }
    recording.step_ids = std::move(fields.step_ids);
  }
  if (!fields.phases.empty()) {
    if (std::ssize(fields.phases) != recording.load.num_steps) {
      throw FormatError(
          file, at, cat(fields.phases.size(), " phases for ", recording.load.num_steps, " steps"));
    }
    for (const int64_t phase : fields.phases)
      recording.phases.push_back(phase == 0 ? Phase::kPrefill : Phase::kDecode);
  }
  recording.metadata = std::move(fields.metadata);
  if (fields.tokens) {
    recording.tokens = finish_json_tokens(std::move(*fields.tokens), file,
                                          recording.load.num_layers, recording.load.num_experts);
  }
  return recording;
}

std::string json_loads(const Recording& recording) {
  const Load& load = recording.load;
  std::string out = cat(
      "{\n\"format\": ", json_quoted(kLoads), ", \"version\": 1,\n\"num_steps\": ", load.num_steps,
      ", \"num_layers\": ", load.num_layers, ", \"num_experts\": ", load.num_experts,
      ",\n\"metadata\": ", metadata_text(recording.metadata), ",\n\"layer_ids\": ");
  append_list<int>(out, recording.layer_ids);
  out += ",\n\"step_ids\": ";
  append_list<int64_t>(out, recording.step_ids);
  if (!recording.phases.empty()) {
    std::vector<int> phases;
    for (const Phase phase : recording.phases) phases.push_back(phase == Phase::kPrefill ? 0 : 1);
    out += ",\n\"phases\": ";
    append_list<int>(out, phases);
  }
  out += ",\n\"logical_count\": [" + step_rows(load) + "]";
  if (recording.tokens && recording.tokens->num_tokens() > 0)
    out += ",\n\"tokens\": " + json_tokens(*recording.tokens);
  return out + "\n}\n";
}

PlacementFile read_json_placement(const Content& content, const PlacementOptions& options) {
  const std::string& file = content.file();
  Fields fields = read_fields(content, kPlacement, "physical_to_logical_map");
  if (fields.slots_per_rank.empty()) throw FormatError(file, 0, "no key \"slots_per_rank\"");
  const int64_t num_slots = fields.table->shape[1];
  int64_t sum = 0;
  for (const int64_t n : fields.slots_per_rank) sum += n;
  if (sum != num_slots) {
    throw FormatError(file, fields.table->at,
                      cat("slots_per_rank sum to ", sum, "; a layer has ", num_slots, " slots"));
  }
  check_size(file, fields, "num_ranks", std::ssize(fields.slots_per_rank));
  check_size(file, fields, "num_layers", fields.table->shape[0]);
  std::vector<int> slots = narrow(fields.slots_per_rank);
  check_ranks(file, slots, options);
  SlotTable table = slot_table(file, std::move(*fields.table), narrow(fields.layer_ids));
  const auto experts = fields.sizes.find("num_experts");
  PlacementFile placement =
      make_placement(file, std::move(table), std::move(slots),
                     experts == fields.sizes.end() ? 0 : experts->second, options);
  placement.metadata = std::move(fields.metadata);
  return placement;
}

std::string json_placement(const PlacementFile& file) {
  const Placement& placement = file.placement;
  std::vector<int> slots;
  for (int rank = 0; rank < placement.num_ranks(); ++rank)
    slots.push_back(placement.slots_of_rank(rank));
  std::string out = cat("{\n\"format\": ", json_quoted(kPlacement),
                        ", \"version\": 1,\n\"num_layers\": ", placement.num_layers(),
                        ", \"num_experts\": ", placement.num_experts(),
                        ", \"num_ranks\": ", placement.num_ranks(), ",\n\"slots_per_rank\": ");
  append_list<int>(out, slots);
  out += cat(",\n\"metadata\": ", metadata_text(file.metadata), ",\n\"layer_ids\": ");
  append_list<int>(out, file.layer_ids);
  out += ",\n\"physical_to_logical_map\": ";
  append_rows(out, slot_rows(placement));
  return out + "\n}\n";
}

}  // namespace trimtab
