// SPDX-License-Identifier: Apache-2.0
// Routing traces as text. A line "S <sample> <tokens>" opens a sample; then each token has a line
// with the ids of its experts for each layer, blanks between ids and '|' between layers. Lines with
// '#' are comments. The first one may carry layers=, experts=, topk=, samples= and tokens=, against
// which the reader checks what follows.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "recordings/checked_recording.h"
#include "recordings/ids.h"
#include "recordings/json_tokens.h"
#include "recordings/line_reader.h"
#include "recordings/readers.h"
#include "trimtab/table.h"
#include "trimtab/traffic.h"

namespace trimtab {
namespace {

class TopKReader {
 public:
  explicit TopKReader(const Content& content)
      : file_(content.file()), lines_(content.text(), file_) {}

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
  std::vector<int64_t> samples;  // the number of tokens of each sample
  int64_t num_tokens = 0;
  int64_t layers = 0;
  int64_t top_k = 0;
  int max_id = 0;
  std::map<std::string, std::string> metadata;

 private:
  void check_declared(const char* key, int64_t found) const {
    if (const auto want = declared(key); want && *want != found) {
      lines_.fail(cat(found, " ", key, "; the head says ", *want));
    }
  }

  // Checks the part that stands under one head when it is complete.
  void end_part() {
    close_sample();
    check_declared("samples", samples_of_part());
    check_declared("tokens", num_tokens - first_token_);
    first_sample_ = std::ssize(samples);
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
      head[key] = lines_.whole_number(value, known, unbounded ? kMaxCount : kMaxExperts);
    }
    metadata.try_emplace(key, value);
  }

  void sample(std::string_view text) {
    close_sample();
    const size_t blank = text.find(' ');
    if (blank == text.npos) lines_.fail("S <sample> <tokens> expected");
    if (lines_.whole_number(text.substr(0, blank), "sample", kMaxCount) != samples_of_part())
      lines_.fail(cat("sample ", samples_of_part(), " expected"));
    expected_ = lines_.whole_number(text.substr(blank + 1), "tokens", kMaxCount);
    if (expected_ == 0) lines_.fail("a sample without tokens");
    samples.push_back(0);
  }
  void close_sample() const {
    if (expected_ == 0 || samples.back() == expected_) return;
    lines_.fail(
        cat("sample ", samples_of_part() - 1, " has ", samples.back(), " tokens of ", expected_));
  }
  int64_t samples_of_part() const { return std::ssize(samples) - first_sample_; }

  void token(std::string_view line) {
    if (samples_of_part() == 0) samples.push_back(0);  // a file without samples is one sample
    if (expected_ != 0 && samples.back() == expected_)
      lines_.fail("a token more than the sample has");
    int64_t groups = 0;
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

  // Appends the ids of one layer.
  void group(std::string_view text, int64_t layer) {
    const int64_t first = std::ssize(ids);
    const auto found = [&] { return std::ssize(ids) - first; };
    const int max_expert = static_cast<int>(declared("experts").value_or(kMaxExperts)) - 1;
    for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != text.npos;) {
      const size_t end = std::min(text.find(' ', at), text.size());
      const std::string_view field = text.substr(at, end - at);
      const int id = lines_.id(field, "expert", max_expert);
      if (std::find(ids.begin() + first, ids.end(), id) != ids.end()) {
        lines_.fail(cat("layer ", layer, " has expert ", id, " twice"), field);
      }
      if (found() == kMaxTopK)
        lines_.fail(cat("more than ", kMaxTopK, " experts for one token"), field);
      ids.push_back(id);
      max_id = std::max(max_id, id);
      if (top_k != 0 && found() > top_k) break;
      at = end;
    }
    if (top_k == 0) top_k = found();
    if (top_k == 0) lines_.fail("a layer without experts", text);
    if (found() != top_k) {
      lines_.fail(cat("layer ", layer, " has not ", top_k, " experts as the first has"), text);
    }
  }

  const std::string& file_;
  LineReader lines_;
  std::map<std::string, int64_t, std::less<>> declared_;
  int64_t expected_ = 0;  // the tokens that the open sample states; 0: no sample is open
  // The place at which the part under the present head begins.
  int64_t first_sample_ = 0;
  int64_t first_token_ = 0;
};

TokenSample sample_of(const TopKReader& text, int64_t experts) {
  TokenSample sample;
  sample.num_layers = static_cast<int>(text.layers);
  sample.num_experts = static_cast<int>(experts);
  sample.top_k = static_cast<int>(text.top_k);
  sample.tokens_seen = text.num_tokens;
  const int64_t row = text.layers * text.top_k;
  const int64_t stride = (text.num_tokens + kMaxSampledTokens - 1) / kMaxSampledTokens;
  sample.stride = stride;
  for (int64_t token = 0; token < text.num_tokens; token += stride) {
    const auto first = text.ids.begin() + token * row;
    sample.ids.insert(sample.ids.end(), first, first + row);
  }
  return sample;
}

// The number of tokens of each step.
std::vector<int64_t> step_tokens(const TopKReader& text, int64_t tokens_per_step) {
  if (tokens_per_step == 0) return text.samples;
  std::vector<int64_t> steps(text.num_tokens / tokens_per_step, tokens_per_step);
  if (const int64_t rest = text.num_tokens % tokens_per_step; rest > 0) steps.push_back(rest);
  return steps;
}

int64_t num_experts(const TopKReader& text, const std::string& file, int asked) {
  const auto declared = text.declared("experts");
  if (asked != 0 && declared && *declared != asked) {
    throw FormatError(file, -1, cat("a trace of ", *declared, " experts; ", asked, " asked for"));
  }
  int64_t experts = declared.value_or(asked);
  if (experts == 0) experts = text.max_id + 1;
  if (text.max_id >= experts)
    throw FormatError(file, -1, cat("expert ", text.max_id, " of ", experts));
  return experts;
}

}  // namespace

Recording read_top_k_loads(const Content& content, const RecordingOptions& options) {
  if (options.tokens_per_step < 0)
    throw InvalidArgument(cat("tokens_per_step ", options.tokens_per_step));
  TopKReader text(content);
  text.read();
  const int64_t experts = num_experts(text, content.file(), options.num_experts);
  const std::vector<int64_t> steps = step_tokens(text, options.tokens_per_step);
  check_dense(content.file(), std::ssize(steps), text.layers, experts, std::ssize(text.ids));

  Recording recording;
  recording.file = content.file();
  recording.metadata = std::move(text.metadata);
  recording.layer_ids = counted_ids<int>(text.layers);
  recording.step_ids = counted_ids<int64_t>(std::ssize(steps));
  recording.load = zero_load(std::ssize(steps), text.layers, experts);
  const Table counts(recording.load.counts, experts);
  auto id = text.ids.begin();
  int64_t first_row = 0;  // of the step
  for (const int64_t tokens : steps) {
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t layer = 0; layer < text.layers; ++layer) {
        for (int64_t k = 0; k < text.top_k; ++k) ++counts(first_row + layer, *id++);
      }
    }
    first_row += text.layers;
  }
  recording.tokens = sample_of(text, experts);
  return recording;
}

}  // namespace trimtab
