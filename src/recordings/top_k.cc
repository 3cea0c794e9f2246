// SPDX-License-Identifier: Apache-2.0
// Routing traces as text: a line "S <sample> <tokens>" opens a sample, then comes a line a token:
// for each layer the ids of its experts, blanks between ids and '|' between layers. Lines with '#'
// are comments, of which the first may carry layers=, experts=, topk=, samples= and tokens= to
// check against.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "recordings/lines.h"
#include "recordings/readers.h"
#include "recordings/tables.h"

namespace trimtab {
namespace {

// The search for ids that come twice is quadratic in it.
constexpr size_t kMaxTopK = 1024;

class TopKReader {
 public:
  TopKReader(std::string_view text, const std::string& file) : file_(file), lines_(text, file) {}

  void read() {
    while (lines_.next()) {
      const std::string_view line = lines_.line();
      if (lines_.blank()) continue;
      if (line.starts_with('#')) {
        comment(line.substr(1));
      } else if (line.starts_with("S ")) {
        sample(line.substr(2));
      } else {
        token(line);
      }
    }
    if (num_tokens == 0) throw FormatError(file_, -1, "top-k text: no tokens");
    end_part();
  }

  std::optional<int64_t> declared(const char* key) const {
    const auto found = declared_.find(key);
    return found == declared_.end() ? std::nullopt : std::optional(found->second);
  }

  std::vector<int32_t> ids;      // [tokens, layers, top-k]
  std::vector<int64_t> samples;  // tokens of each
  int64_t num_tokens = 0;
  size_t layers = 0;
  size_t top_k = 0;
  int32_t max_id = 0;
  std::map<std::string, std::string> metadata;

 private:
  void check_declared(const char* key, size_t found) const {
    if (const auto want = declared(key); want && *want != static_cast<int64_t>(found)) {
      lines_.fail(cat(found, " ", key, "; the head says ", *want));
    }
  }

  // What stands under one head is complete.
  void end_part() {
    close_sample();
    check_declared("samples", samples.size() - first_sample_);
    check_declared("tokens", num_tokens - first_token_);
    first_sample_ = samples.size();
    first_token_ = num_tokens;
    expected_ = 0;
  }

  void comment(std::string_view text) {
    text = text.substr(0, text.find(';'));  // prose follows
    std::map<std::string, int64_t, std::less<>> head;
    for (size_t at = 0; (at = text.find_first_not_of(" \t", at)) != text.npos;) {
      const size_t end = std::min(text.find_first_of(" \t", at), text.size());
      read_word(text.substr(at, end - at), head);
      at = end;
    }
    if (head.empty()) return;
    const std::optional<int64_t> experts = declared("experts");
    if (num_tokens > 0) end_part();
    declared_ = std::move(head);
    if (num_tokens == 0) return;
    check_first();
    if (declared("experts") != experts)
      lines_.fail("another number of experts than the head before");
  }
  void read_word(std::string_view word, std::map<std::string, int64_t, std::less<>>& head) {
    const size_t equals = word.find('=');
    if (equals == word.npos) return;
    const std::string key(word.substr(0, equals));
    const std::string_view value = word.substr(equals + 1);
    for (const char* known : {"layers", "experts", "topk", "samples", "tokens"}) {
      if (key != known) continue;
      const bool unbounded = key == "samples" || key == "tokens";
      head[key] = lines_.number(value, known,
                                unbounded ? std::numeric_limits<int64_t>::max() : kMaxExperts);
    }
    metadata.try_emplace(key, value);
  }

  void sample(std::string_view text) {
    close_sample();
    const size_t blank = text.find(' ');
    if (blank == text.npos) lines_.fail("S <sample> <tokens> expected");
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    if (lines_.number(text.substr(0, blank), "sample", kMax) !=
        static_cast<int64_t>(samples.size() - first_sample_)) {
      lines_.fail(cat("sample ", samples.size() - first_sample_, " expected"));
    }
    expected_ = lines_.number(text.substr(blank + 1), "tokens", kMax);
    if (expected_ == 0) lines_.fail("a sample without tokens");
    samples.push_back(0);
  }
  void close_sample() const {
    if (expected_ == 0 || samples.back() == expected_) return;
    lines_.fail(cat("sample ", samples.size() - 1 - first_sample_, " has ", samples.back(),
                    " tokens of ", expected_));
  }

  void token(std::string_view line) {
    if (samples.size() == first_sample_) samples.push_back(0);  // what has no samples is one
    if (expected_ != 0 && samples.back() == expected_)
      lines_.fail("a token more than the sample has");
    size_t groups = 0;
    for (bool more = true; more; ++groups) {
      const size_t bar = line.find('|');
      group(line.substr(0, bar), groups);
      more = bar != line.npos;
      if (more) line.remove_prefix(bar + 1);
    }
    if (num_tokens == 0) layers = groups;
    if (groups != layers) lines_.fail(cat(groups, " layers; the first token has ", layers));
    if (num_tokens == 0) check_first();
    ++samples.back();
    ++num_tokens;
  }
  void check_first() const {
    check_declared("layers", layers);
    check_declared("topk", top_k);
  }

  void group(std::string_view text, size_t layer) {
    const size_t first = ids.size();
    for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != text.npos;) {
      const size_t end = std::min(text.find(' ', at), text.size());
      const std::string_view field = text.substr(at, end - at);
      const auto id = static_cast<int32_t>(
          lines_.number(field, "expert", declared("experts").value_or(kMaxExperts) - 1));
      if (std::find(ids.begin() + static_cast<int64_t>(first), ids.end(), id) != ids.end()) {
        lines_.fail(cat("layer ", layer, " has expert ", id, " twice"), field);
      }
      if (ids.size() - first == kMaxTopK)
        lines_.fail(cat("more than ", kMaxTopK, " experts for one token"), field);
      ids.push_back(id);
      max_id = std::max(max_id, id);
      if (top_k != 0 && ids.size() - first > top_k) break;
      at = end;
    }
    if (top_k == 0) top_k = ids.size() - first;
    if (top_k == 0) lines_.fail("a layer without experts", text);
    if (ids.size() - first != top_k) {
      lines_.fail(cat("layer ", layer, " has not ", top_k, " experts as the first has"), text);
    }
  }

  const std::string& file_;
  LineReader lines_;
  std::map<std::string, int64_t, std::less<>> declared_;
  int64_t expected_ = 0;  // tokens of the open sample; 0: none was opened
  // Where the part under the present head begins.
  size_t first_sample_ = 0;
  int64_t first_token_ = 0;
};

// Tokens of each step.
std::vector<int64_t> step_tokens(const TopKReader& text, int64_t tokens_per_step) {
  if (tokens_per_step == 0) return text.samples;
  std::vector<int64_t> steps(text.num_tokens / tokens_per_step, tokens_per_step);
  if (const int64_t rest = text.num_tokens % tokens_per_step; rest > 0) steps.push_back(rest);
  return steps;
}

}  // namespace

Recording read_top_k_loads(std::string_view text, const std::string& file,
                           const RecordingOptions& options) {
  if (options.tokens_per_step < 0)
    throw InvalidArgument(cat("tokens_per_step ", options.tokens_per_step));
  TopKReader reader(text, file);
  reader.read();
  const auto declared = reader.declared("experts");
  if (options.num_experts != 0 && declared && *declared != options.num_experts) {
    throw FormatError(
        file, -1, cat("a trace of ", *declared, " experts; ", options.num_experts, " asked for"));
  }
  int64_t experts = declared.value_or(options.num_experts);
  if (experts == 0) experts = reader.max_id + 1;
  if (reader.max_id >= experts)
    throw FormatError(file, -1, cat("expert ", reader.max_id, " of ", experts));
  const std::vector<int64_t> steps = step_tokens(reader, options.tokens_per_step);
  check_dense(file, steps.size(), reader.layers, experts, reader.ids.size());

  Recording recording;
  recording.file = file;
  recording.metadata = std::move(reader.metadata);
  recording.layer_ids = counted_layers(reader.layers);
  recording.step_ids = counted_steps(steps.size());
  recording.load = {static_cast<int64_t>(steps.size()),
                    static_cast<int>(reader.layers),
                    static_cast<int>(experts),
                    {}};
  recording.load.counts.resize(steps.size() * reader.layers * static_cast<size_t>(experts));
  auto id = reader.ids.begin();
  for (size_t step = 0; step < steps.size(); ++step) {
    for (int64_t token = 0; token < steps[step]; ++token) {
      for (size_t layer = 0; layer < reader.layers; ++layer) {
        const size_t row = (step * reader.layers + layer) * static_cast<size_t>(experts);
        for (size_t k = 0; k < reader.top_k; ++k)
          ++recording.load.counts[row + static_cast<size_t>(*id++)];
      }
    }
  }
  return recording;
}

}  // namespace trimtab
