// SPDX-License-Identifier: Apache-2.0
// TensorRT-LLM's placement (moe_config.load_balancer), which is YAML. This reader knows the part of
// YAML that such a file is made of: three keys, one mapping of layers to lists of numbers, lists in
// block or flow form, and comments. It names the rest of YAML when it refuses it, and never
// guesses.
#include <optional>

#include "recordings/checked_placement.h"
#include "recordings/ids.h"
#include "recordings/line_reader.h"
#include "recordings/readers.h"

namespace trimtab {
namespace {

class YamlReader {
 public:
  explicit YamlReader(const Content& content)
      : file_(content.file()), lines_(content.text(), file_) {}

  void read() {
    more_ = next_line();
    if (more_ && indent_ == 0 && content_ == "---") more_ = next_line();
    while (more_) {
      if (indent_ != 0) lines_.fail("a key of the file starts its line", content_);
      const std::string_view key = take_key();
      if (key == "num_slots") {
        take_number(key, num_slots_, kMaxExperts);
      } else if (key == "layer_updates_per_iter") {
        take_number(key, layer_updates_, kMaxLayerId);
      } else if (key == "initial_global_assignments") {
        read_assignments();
      } else {
        lines_.fail(cat("unknown key ", key), key);
      }
    }
    if (!num_slots_) throw FormatError(file_, -1, "no num_slots");
    if (table_.num_layers == 0) throw FormatError(file_, -1, "no initial_global_assignments");
    check_sizes();
  }

  SlotTable& table() { return table_; }
  int64_t num_slots() const { return *num_slots_; }
  std::optional<int64_t> layer_updates() const { return layer_updates_; }

 private:
  // Moves to the next line that has content, and drops comments and the blanks around the content.
  bool next_line() {
    while (lines_.next()) {
      std::string_view line = lines_.line();
      const size_t first = line.find_first_not_of(' ');
      if (first == line.npos) continue;
      if (line[first] == '\t') lines_.fail("a tab in the indentation");
      size_t comment = line.find('#');
      while (comment != line.npos && comment > 0 && line[comment - 1] != ' ' &&
             line[comment - 1] != '\t') {
        comment = line.find('#', comment + 1);
      }
      line = line.substr(first, comment == line.npos ? line.npos
                                : comment > first    ? comment - first
                                                     : 0);
      line = line.substr(0, line.find_last_not_of(" \t") + 1);
      if (line.empty()) continue;
      content_ = line;
      indent_ = first;
      return true;
    }
    return false;
  }

  // Takes the key at the begin of the line. content_ is then the text behind the key.
  std::string_view take_key() {
    const size_t colon = content_.find(':');
    if (colon == content_.npos || (colon + 1 < content_.size() && content_[colon + 1] != ' ')) {
      lines_.fail("'key: value' expected", content_);
    }
    const std::string_view key = content_.substr(0, colon);
    if (key.find_first_of("\"'{}[]&*!?| ") != key.npos)
      lines_.fail("a plain key expected", content_);
    content_.remove_prefix(colon + 1);
    content_.remove_prefix(std::min(content_.find_first_not_of(' '), content_.size()));
    return key;
  }

  void take_number(std::string_view key, std::optional<int64_t>& value, int64_t max) {
    if (value) lines_.fail(cat(key, " comes twice"), key);
    value = lines_.whole_number(content_, "value", max);
    more_ = next_line();
  }

  void read_assignments() {
    if (table_.num_layers > 0) lines_.fail("initial_global_assignments comes twice", content_);
    if (!content_.empty())
      lines_.fail("a layer a line expected, not a map in braces or anything else", content_);
    more_ = next_line();
    const size_t indent = indent_;
    while (more_ && indent_ > 0) {
      if (indent_ != indent) lines_.fail("indented otherwise than the layers before", content_);
      const int64_t line_at = lines_.begin();
      const std::string_view key = take_key();
      const int layer = lines_.id(key, "layer", kMaxLayerId);
      if (!table_.layer_ids.empty() && layer <= table_.layer_ids.back()) {
        lines_.fail(cat("layer ", layer, " after ", table_.layer_ids.back(),
                        "; layers ascend and come once"),
                    key);
      }
      table_.layer_ids.push_back(layer);
      table_.layer_at.push_back(line_at);
      ++table_.num_layers;
      const int64_t before = std::ssize(table_.logical);
      if (content_.empty()) {
        read_block_list(indent);
      } else {
        read_flow_list();
      }
      sizes_.push_back(std::ssize(table_.logical) - before);
    }
  }

  void read_block_list(size_t indent) {
    more_ = next_line();
    const size_t list_indent = indent_;
    size_t items = 0;
    while (more_ && content_.starts_with('-') && indent_ >= indent) {
      if (indent_ != list_indent) lines_.fail("indented otherwise than the list before", content_);
      if (content_.size() > 1 && content_[1] != ' ') lines_.fail("'- number' expected", content_);
      table_.logical.push_back(lines_.id(content_.substr(1), "expert", kMaxExpertId));
      ++items;
      more_ = next_line();
    }
    if (items == 0) {
      throw FormatError(file_, table_.layer_at.back(),
                        cat("layer ", table_.layer_ids.back(), ": no list of experts"));
    }
  }

  // Throws when a layer has other than num_slots slots.
  void check_sizes() const {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (sizes_[i] != *num_slots_) {
        throw FormatError(file_, table_.layer_at[i],
                          cat("layer ", table_.layer_ids[i], ": ", sizes_[i],
                              " slots; num_slots is ", *num_slots_));
      }
    }
  }

  // Reads "[1, 2, 3]", which stands over several lines where the writer folded it.
  void read_flow_list() {
    if (!content_.starts_with('[')) lines_.fail("a list of experts expected", content_);
    content_.remove_prefix(1);
    for (bool first = true;; first = false) {
      content_.remove_prefix(std::min(content_.find_first_not_of(' '), content_.size()));
      if (content_.empty()) {
        if (!next_line() || indent_ == 0) lines_.fail("a list without an end");
      }
      const size_t end = content_.find_first_of(",]");
      const std::string_view item = content_.substr(0, end);
      if (end == content_.npos) {
        // the comma that ends an item stands behind it: a fold never comes before one
        lines_.fail("',' or ']' expected", content_.substr(content_.size()));
      }
      const bool last = content_[end] == ']';
      if (!(first && last && item.empty())) {
        table_.logical.push_back(lines_.id(item, "expert", kMaxExpertId));
      }
      content_.remove_prefix(end + 1);
      if (last) break;
    }
    if (!content_.empty()) lines_.fail("something follows the list", content_);
    more_ = next_line();
  }

  const std::string& file_;
  LineReader lines_;
  bool more_ = false;
  size_t indent_ = 0;
  std::string_view content_;
  std::optional<int64_t> num_slots_;
  std::optional<int64_t> layer_updates_;
  SlotTable table_;
  std::vector<int64_t> sizes_;  // [layers]
};

}  // namespace

PlacementFile read_trtllm_placement(const Content& content, const PlacementOptions& options) {
  YamlReader reader(content);
  reader.read();
  std::vector<int> slots = slots_per_rank(content.file(), reader.num_slots(), options);
  PlacementFile placement =
      make_placement(content.file(), std::move(reader.table()), std::move(slots), 0, options);
  if (reader.layer_updates())
    placement.metadata["layer_updates_per_iter"] = std::to_string(*reader.layer_updates());
  return placement;
}

std::string trtllm_placement(const PlacementFile& file) {
  const Placement& placement = file.placement;
  equal_slots(placement, "TensorRT-LLM");
  const auto found = file.metadata.find("layer_updates_per_iter");
  const std::string updates = found == file.metadata.end() ? "0" : found->second;
  if (updates.empty() || updates.find_first_not_of("0123456789") != updates.npos) {
    throw InvalidArgument(cat("layer_updates_per_iter '", updates, "': a number expected"));
  }
  std::string out = "initial_global_assignments:\n";
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    out += cat("  ", file.layer_ids[layer], ": ");
    append_list(out, placement.logical(layer));
    out += '\n';
  }
  return out +
         cat("layer_updates_per_iter: ", updates, "\nnum_slots: ", placement.num_slots(), "\n");
}

}  // namespace trimtab
