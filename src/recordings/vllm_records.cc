// SPDX-License-Identifier: Apache-2.0
#include "recordings/vllm_records.h"

#include <limits>

#include "base/quoted.h"
#include "recordings/ids.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

std::map<int64_t, IntTable> read_assignments(JsonReader& json) {
  std::map<int64_t, IntTable> assignments;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    // Layers stand in order: keys out of order or with holes would be layers that nobody can tell
    // apart.
    const int64_t layer = std::ssize(assignments);
    if (key != std::to_string(layer)) {
      json.fail(json.offset(),
                cat("layer ", json_quoted(key), " where \"", layer, "\" is expected"));
    }
    assignments.emplace(layer, read_table(json, "layer " + key, 1, 1, kMaxExpertId));
  }
  return assignments;
}

VllmRecord read_record(JsonReader& json) {
  VllmRecord record;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    if (key == "record_type") {
      record.type = json.string();
    } else if (key == "version" || key == "step" || key.starts_with("num_")) {
      // Tools may write num_... as anything. The readers check those that they use.
      if (const char c = json.peek(); c == '-' || (c >= '0' && c <= '9')) {
        record.numbers[key] = json.integer(std::numeric_limits<int64_t>::min(), kMaxCount);
      } else {
        json.skip_value();
      }
    } else if (key == "model" && json.peek() == '"') {
      record.model = json.string();
    } else if (key == "expert_load") {
      record.expert_load = read_table(json, key, 2, 2, kMaxCount);
    } else if (key == "p2l_map") {
      record.p2l_map = read_table(json, key, 2, 2, kMaxExpertId, -1);
    } else if (key == "initial_global_assignments") {
      record.assignments = read_assignments(json);
    } else {
      json.skip_value();
    }
  }
  json.end();
  return record;
}

}  // namespace

bool VllmRecordReader::next() {
  while (lines_.next()) {
    if (lines_.blank()) continue;
    JsonReader json(lines_.line(), file_, lines_.begin(), lines_.number());
    try {
      record = read_record(json);
    } catch (const FormatError& error) {
      if (!lines_.is_unfinished() || lines_.line().ends_with('}')) throw;
      throw FormatError(file_, error.offset(),
                        cat("line ", lines_.number(),
                            ": the file ends within this record, whose "
                            "writing was interrupted; without the line the rest can be read"));
    }
    if (record.type == "session_metadata" || record.type == "bench_run_start") continue;
    if (number("version") != 1) lines_.fail(cat(record.type, ": version 1 expected"));
    return true;
  }
  return false;
}

std::optional<int64_t> VllmRecordReader::number(const char* key) const {
  const auto found = record.numbers.find(key);
  return found == record.numbers.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace trimtab
