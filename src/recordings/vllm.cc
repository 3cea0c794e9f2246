// SPDX-License-Identifier: Apache-2.0
// The JSON lines of vLLM's offline EPLB as its pull request 41141 has them (tools/eplb, version 1):
// eplb_load_stats records, in its later state behind one eplb_load_meta; and an
// eplb_initial_mapping record for a placement.
#include <algorithm>
#include <limits>
#include <optional>

#include "recordings/lines.h"
#include "recordings/readers.h"
#include "recordings/tables.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

struct Record {
  std::string type;
  std::map<std::string, int64_t> numbers;
  std::optional<std::string> model;
  std::optional<IntTable> expert_load;
  std::optional<IntTable> p2l_map;
  std::map<int64_t, IntTable> assignments;
};

std::map<int64_t, IntTable> read_assignments(JsonReader& json) {
  std::map<int64_t, IntTable> assignments;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    // By its place: keys out of order or with holes would be layers that nobody can tell apart.
    if (key != std::to_string(assignments.size())) {
      json.fail(json.offset(),
                cat("layer ", quoted(key), " where \"", assignments.size(), "\" is expected"));
    }
    assignments.emplace(static_cast<int64_t>(assignments.size()),
                        read_table(json, "layer " + key, 1, 1, kMaxExperts - 1));
  }
  return assignments;
}

Record read_record(JsonReader& json) {
  Record record;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    if (key == "record_type") {
      record.type = json.string();
    } else if (key == "version" || key == "step" || key.starts_with("num_")) {
      // tools may write num_... as anything; those that count are checked where they are used
      if (const char c = json.peek(); c == '-' || (c >= '0' && c <= '9')) {
        record.numbers[key] = json.integer(std::numeric_limits<int64_t>::min(), kMax);
      } else {
        json.skip_value();
      }
    } else if (key == "model" && json.peek() == '"') {
      record.model = json.string();
    } else if (key == "expert_load") {
      record.expert_load = read_table(json, key, 2, 2, kMax);
    } else if (key == "p2l_map") {
      record.p2l_map = read_table(json, key, 2, 2, kMaxExperts - 1);
    } else if (key == "initial_global_assignments") {
      record.assignments = read_assignments(json);
    } else {
      json.skip_value();
    }
  }
  json.end();
  return record;
}

// Reads records line by line and keeps the places for errors.
class RecordReader {
 public:
  RecordReader(std::string_view text, const std::string& file) : file_(file), lines_(text, file) {}

  bool next() {
    while (lines_.next()) {
      if (lines_.blank()) continue;
      JsonReader json(lines_.line(), file_, lines_.begin(), lines_.number());
      record = read_record(json);
      if (record.type == "session_metadata" || record.type == "bench_run_start")
        continue;  // the tools' own marks
      if (number("version", -1) != 1) lines_.fail(cat(record.type, ": version 1 expected"));
      return true;
    }
    return false;
  }
  int64_t number(const char* key, int64_t absent) const {
    const auto found = record.numbers.find(key);
    return found == record.numbers.end() ? absent : found->second;
  }
  [[noreturn]] void fail(const std::string& what) const { lines_.fail(what); }
  int64_t begin() const { return static_cast<int64_t>(lines_.begin()); }

  Record record;

 private:
  const std::string& file_;
  LineReader lines_;
};

// Adds the logical counts of one step.
void add_step(const RecordReader& reader, Recording& recording) {
  const Record& record = reader.record;
  if (!record.expert_load || !record.p2l_map) reader.fail("no expert_load or no p2l_map");
  const IntTable& load = *record.expert_load;
  const IntTable& map = *record.p2l_map;
  if (load.shape != map.shape) {
    reader.fail(cat("expert_load is [", load.shape[0], ", ", load.shape[1], "], p2l_map [",
                    map.shape[0], ", ", map.shape[1], "]"));
  }
  const int64_t step = reader.number("step", -1);
  if (step < 0) reader.fail("no step");
  if (!recording.step_ids.empty() && step <= recording.step_ids.back()) {
    reader.fail(cat("step ", step, " after ", recording.step_ids.back()));
  }
  const int64_t experts = *std::max_element(map.values.begin(), map.values.end()) + 1;
  if (experts > load.shape[1])
    reader.fail(cat("p2l_map: expert ", experts - 1, " in ", load.shape[1], " slots"));
  if (load.shape[0] > kMaxLayerId) reader.fail(cat(load.shape[0], " layers"));
  Load& sum = recording.load;
  if (recording.step_ids.empty()) {
    sum.num_layers = static_cast<int>(load.shape[0]);
    sum.num_experts = static_cast<int>(experts);
  }
  if (load.shape[0] != sum.num_layers || experts != sum.num_experts) {
    reader.fail(cat(load.shape[0], " layers of ", experts, " experts; the first step has ",
                    sum.num_layers, " of ", sum.num_experts));
  }
  const size_t first = sum.counts.size();
  sum.counts.resize(first + cells(sum.num_layers, experts));
  for (size_t i = 0; i < load.values.size(); ++i) {
    const size_t layer = i / static_cast<size_t>(load.shape[1]);
    int64_t& count = sum.counts[first + layer * static_cast<size_t>(experts) +
                                static_cast<size_t>(map.values[i])];
    if (load.values[i] > kMax - count)
      reader.fail("the counts of an expert's slots sum to more than 63 bits hold");
    count += load.values[i];
  }
  recording.step_ids.push_back(step);
}

}  // namespace

Recording read_vllm_loads(std::string_view text, const std::string& file,
                          const RecordingOptions& options) {
  RecordReader reader(text, file);
  Recording recording;
  recording.file = file;
  int64_t layers = -1;
  while (reader.next()) {
    if (reader.record.type == "eplb_load_meta") {
      if (layers >= 0 || !recording.step_ids.empty())
        reader.fail("eplb_load_meta must come once, and first");
      layers = reader.number("num_layers", 0);
      if (reader.record.model) recording.metadata["model"] = *reader.record.model;
      if (const int64_t ranks = reader.number("num_ranks", 0); ranks > 0) {
        recording.metadata["num_ranks"] = std::to_string(ranks);
      }
    } else if (reader.record.type == "eplb_load_stats") {
      add_step(reader, recording);
      if (layers >= 0 && layers != recording.load.num_layers) {
        reader.fail(cat(recording.load.num_layers, " layers; eplb_load_meta says ", layers));
      }
    } else {
      reader.fail(cat("record_type ", quoted(reader.record.type), "; eplb_load_stats expected"));
    }
  }
  if (recording.step_ids.empty()) throw FormatError(file, -1, "no eplb_load_stats record");
  Load& load = recording.load;
  load.num_steps = static_cast<int64_t>(recording.step_ids.size());
  if (options.num_experts != 0 && options.num_experts != load.num_experts) {
    throw FormatError(
        file, -1,
        cat("loads of ", load.num_experts, " experts; ", options.num_experts, " asked for"));
  }
  recording.layer_ids = counted_layers(load.num_layers);
  return checked(std::move(recording));
}

std::string vllm_loads(const Recording& recording) {
  const Load& load = recording.load;
  const auto found = recording.metadata.find("num_ranks");
  const std::string ranks = found == recording.metadata.end() ? "1" : found->second;
  if (ranks.empty() || ranks.find_first_not_of("0123456789") != ranks.npos ||
      ranks.starts_with('0')) {
    throw InvalidArgument(cat("num_ranks '", ranks, "': a number expected"));
  }
  const auto model = recording.metadata.find("model");
  std::string out = cat("{\"record_type\": \"eplb_load_meta\", \"version\": 1, \"model\": ",
                        quoted(model == recording.metadata.end() ? "" : model->second),
                        ", \"num_ranks\": ", ranks,
                        ", \"num_groups\": 1, \"num_nodes\": 1, \"num_layers\": ", load.num_layers,
                        ", \"num_redundant_experts\": 0}\n");
  std::string rows = "[";
  for (int layer = 0; layer < load.num_layers; ++layer) {
    if (layer > 0) rows += ", ";
    append_list<int>(rows, counted_layers(load.num_experts));
  }
  for (size_t step = 0; step < recording.step_ids.size(); ++step) {
    out += cat("{\"record_type\": \"eplb_load_stats\", \"version\": 1, \"step\": ",
               recording.step_ids[step], ", \"num_ranks\": ", ranks, ", \"expert_load\": [");
    for (int layer = 0; layer < load.num_layers; ++layer) {
      if (layer > 0) out += ", ";
      append_list(out, load.at(static_cast<int64_t>(step), layer));
    }
    out += cat("], \"p2l_map\": ", rows, "]}\n");
  }
  return out;
}

PlacementFile read_vllm_placement(std::string_view text, const std::string& file,
                                  const PlacementOptions& options) {
  RecordReader reader(text, file);
  SlotTable table;
  int64_t num_slots = 0;
  int64_t redundant = 0;
  while (reader.next()) {
    if (reader.record.type != "eplb_initial_mapping") {
      reader.fail(
          cat("record_type ", quoted(reader.record.type), "; eplb_initial_mapping expected"));
    }
    if (table.num_layers > 0) reader.fail("a second eplb_initial_mapping");
    num_slots = reader.number("num_slots", -1);
    redundant = reader.number("num_redundant_experts", -1);
    table.num_layers = reader.record.assignments.size();
    if (table.num_layers == 0) reader.fail("no initial_global_assignments");
    if (num_slots < 1 || num_slots > kMaxExperts || redundant < 0 || redundant >= num_slots) {
      reader.fail(cat("num_slots ", num_slots, ", num_redundant_experts ", redundant));
    }
    for (const auto& [layer, row] : reader.record.assignments) {
      if (static_cast<int64_t>(row.values.size()) != num_slots) {
        throw FormatError(
            file, row.at,
            cat("layer ", layer, ": ", row.values.size(), " slots; num_slots is ", num_slots));
      }
      table.logical.insert(table.logical.end(), row.values.begin(), row.values.end());
      table.layer_at.push_back(row.at);
    }
  }
  if (table.num_layers == 0) throw FormatError(file, -1, "no eplb_initial_mapping record");
  table.layer_ids = counted_layers(table.num_layers);
  std::vector<int> slots = slots_per_rank(file, num_slots, options);
  return make_placement(file, std::move(table), std::move(slots), num_slots - redundant, options);
}

std::string vllm_placement(const PlacementFile& file) {
  const Placement& placement = file.placement;
  equal_slots(placement, "vLLM");
  std::string out =
      cat("{\"record_type\": \"eplb_initial_mapping\", \"version\": 1, \"num_redundant_experts\": ",
          placement.num_slots() - placement.num_experts(),
          ", \"num_slots\": ", placement.num_slots(), ", \"initial_global_assignments\": {");
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    out += cat(layer > 0 ? ", " : "", "\"", layer, "\": ");
    append_list(out, placement.logical(layer));
  }
  return out + "}}\n";
}

}  // namespace trimtab
