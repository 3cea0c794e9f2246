// SPDX-License-Identifier: Apache-2.0
// The JSON lines of vLLM's offline EPLB as its pull request 41141 has them (tools/eplb, version 1):
// eplb_load_stats records for loads, in its later state behind one eplb_load_meta, and an
// eplb_initial_mapping record for a placement.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "recordings/content.h"
#include "recordings/json_table.h"
#include "recordings/line_reader.h"

namespace trimtab {

struct VllmRecord {
  std::string type;
  std::map<std::string, int64_t> numbers;
  std::optional<std::string> model;
  std::optional<IntTable> expert_load;
  std::optional<IntTable> p2l_map;          // the expert of each slot, -1 for an empty slot
  std::map<int64_t, IntTable> assignments;  // by layer
};

// Reads records line by line and keeps their places for errors. Throws FormatError.
class VllmRecordReader {
 public:
  // The content must outlive the reader.
  explicit VllmRecordReader(const Content& content)
      : file_(content.file()), lines_(content.text(), file_) {}

  // Moves to the next record, past the marks that vLLM's own tools leave. Returns false at the end.
  bool next();
  std::optional<int64_t> number(const char* key) const;
  [[noreturn]] void fail(const std::string& what) const { lines_.fail(what); }

  VllmRecord record;

 private:
  const std::string& file_;
  LineReader lines_;
};

}  // namespace trimtab
