// SPDX-License-Identifier: Apache-2.0
#include "cli/run/outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/output/output.h"
#include "cli/output/text.h"

namespace trimtab::cli {

namespace {

const char* name(Finish finish) {
  switch (finish) {
    case Finish::kEndToken:
      return "end_token";
    case Finish::kStop:
      return "stop";
    case Finish::kMaxNewTokens:
      return "steps";
    case Finish::kContextFull:
      return "context";
    case Finish::kNotFinite:
      return "error";
    case Finish::kInterrupted:
      return "interrupted";
  }
  return "";
}

// The prompt, and the output with a margin in front of each line, so that prompt, output and what
// follows can be told apart. More output makes these lines longer and changes none of them.
std::string begin_lines(const std::string& prompt, const std::string& output, int64_t i) {
  std::string text = fmt::format("[{}] {}\n  | ", i + 1, printable(prompt));
  for (const char c : output) {
    text.push_back(c);
    if (c == '\n') text += "  | ";
  }
  return text;
}

std::string shown(std::span<const int32_t> token_ids, const std::string& text, bool has_text) {
  return has_text ? printable(text) : fmt::format("{}", fmt::join(token_ids, ","));
}

// The tokens of the longest stop that these end with.
size_t stop_length(std::span<const int32_t> tokens, const OutputRules& rules) {
  size_t length = 0;
  for (const std::vector<int32_t>& stop : rules.stops) {
    if (stop.size() <= tokens.size() && std::ranges::equal(tokens.last(stop.size()), stop))
      length = std::max(length, stop.size());
  }
  return length;
}

}  // namespace

Output output_of(const Prompt& prompt, const Generation& generation, const OutputRules& rules) {
  std::span<const int32_t> text = generation.token_ids;
  if (generation.finish == Finish::kStop) text = text.first(text.size() - stop_length(text, rules));
  return {valid_utf8(prompt.text), std::ssize(prompt.token_ids), generation.token_ids,
          rules.has_text ? valid_utf8(bytes_of(text)) : "", name(generation.finish)};
}

std::string lines_of(const Output& output, int64_t i, bool has_text) {
  std::string text =
      begin_lines(output.prompt, shown(output.token_ids, output.text, has_text), i) + "\n";
  if (output.finish == "error") text += "  (ended here: the logits have a NaN or an infinity)\n";
  if (output.finish == "interrupted") text += "  (interrupted)\n";
  return text + "\n";
}

OutputStream::OutputStream(std::span<const Prompt> prompts, const OutputRules& rules)
    : prompts_(prompts), rules_(rules), shown_(prompts.size()) {
  for (const std::vector<int32_t>& stop : rules.stops)
    longest_stop_ = std::max(longest_stop_, stop.size());
}

void OutputStream::grow(int64_t prompt, const Generation& so_far, bool ended) {
  const Prompt& of = prompts_[prompt];
  std::string lines;
  if (ended) {
    lines = lines_of(output_of(of, so_far, rules_), prompt, rules_.has_text);
  } else if (rules_.has_text) {
    // What may turn out to be a stop waits, and so does a character whose last bytes are to come.
    std::span<const int32_t> ids = so_far.token_ids;
    ids = ids.first(ids.size() - std::min(ids.size(), std::max<size_t>(longest_stop_, 1) - 1));
    const std::string bytes = bytes_of(ids);
    lines = begin_lines(
        valid_utf8(of.text),
        printable(valid_utf8(std::string_view(bytes).substr(0, whole_characters(bytes)))), prompt);
  } else {
    lines = begin_lines(valid_utf8(of.text), shown(so_far.token_ids, "", false), prompt);
  }
  const std::lock_guard lock(mutex_);
  shown_[prompt].lines = std::move(lines);
  shown_[prompt].ended = ended;
  print_what_is_due();
}

void OutputStream::print_what_is_due() {
  std::string due;
  for (; next_ < shown_.size(); ++next_) {
    Shown& shown = shown_[next_];
    due += shown.lines.substr(std::min(shown.printed, shown.lines.size()));
    shown.printed = std::max(shown.printed, shown.lines.size());
    if (!shown.ended) break;
  }
  if (!due.empty()) print_report(due);
}

void OutputStream::finish(std::span<const Output> outputs) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    shown_[i].lines = lines_of(outputs[i], static_cast<int64_t>(i), rules_.has_text);
    shown_[i].ended = true;
  }
  print_what_is_due();
}

}  // namespace trimtab::cli
