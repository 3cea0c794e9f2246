// SPDX-License-Identifier: Apache-2.0
#include "cli/run/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string_view>

#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

std::string read_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  // A directory opens but does not read.
  if (!in || std::filesystem::is_directory(file)) throw FormatError(file, -1, "can't be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

// The parts of text between the separators that are not empty.
std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// The lines of a text. The last one may end without a line break.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The prompts of one line: with ';' between them, and perhaps one at the end.
std::vector<std::string_view> prompts_of(std::string_view line) {
  std::vector<std::string_view> prompts;
  for (;;) {
    const size_t end = line.find(';');
    prompts.push_back(line.substr(0, end));
    if (end == line.npos) return prompts;
    line.remove_prefix(end + 1);
    if (line.find_first_not_of(" \t") == line.npos) return prompts;
  }
}

int32_t parse_id(std::string_view digits, const std::string& source) {
  int32_t id = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (error != std::errc() || end != digits.data() + digits.size() || id < 0) {
    throw FormatError(source, -1, "\"" + std::string(digits) + "\" is not a token id");
  }
  return id;
}

std::vector<Prompt> read_text_prompts(const std::string& file, const ModelConfig& config) {
  const std::string content = read_file(file);
  std::vector<Prompt> prompts;
  for (const std::string_view line : lines_of(content)) {
    Prompt prompt{std::string(line), {}};
    if (config.bos_token_id >= 0) prompt.token_ids.push_back(config.bos_token_id);
    for (const char c : line) prompt.token_ids.push_back(static_cast<unsigned char>(c));
    if (prompt.token_ids.empty()) {
      throw FormatError(file, -1,
                        fmt::format("line {} is empty, and this model has no token to begin with",
                                    prompts.size() + 1));
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) throw FormatError(file, -1, "has no prompt (one a line)");
  return prompts;
}

// The prompts or stops (`what`) of an option's value: token ids or a file of them.
std::vector<Prompt> read_token_ids(const std::string& argument, const std::string& option,
                                   std::string_view what) {
  const bool is_inline = argument.find_first_not_of("0123456789,; \t\n") == std::string::npos;
  const std::string source = is_inline ? option : argument;
  if (!is_inline && !std::filesystem::exists(argument)) {
    throw InvalidArgument(fmt::format("{} {}: neither a file nor token ids", option, argument));
  }
  const std::string content = is_inline ? argument : read_file(argument);
  std::vector<Prompt> prompts;
  for (const std::string_view line : lines_of(content)) {
    for (const std::string_view part : prompts_of(line)) {
      Prompt prompt;
      for (const std::string_view digits : split(part, ", \t")) {
        prompt.token_ids.push_back(parse_id(digits, source));
        prompt.text += (prompt.text.empty() ? "" : ",") + std::string(digits);
      }
      if (prompt.token_ids.empty())
        throw FormatError(source, -1, fmt::format("{} {} is empty", what, prompts.size() + 1));
      prompts.push_back(std::move(prompt));
    }
  }
  if (prompts.empty()) throw FormatError(source, -1, "has no token id");
  return prompts;
}

}  // namespace

bool is_byte_level(const std::string& model, const ModelConfig& config) {
  if (config.vocab_size < 256 || config.vocab_size > 320) return false;
  const std::filesystem::path directory(model);
  for (const char* file :
       {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt"}) {
    if (std::filesystem::exists(directory / file)) return false;
  }
  return true;
}

std::vector<Prompt> read_prompts(const std::string& model, const ModelConfig& config,
                                 const std::string& text_file, const std::string& token_ids) {
  if (!token_ids.empty()) return read_token_ids(token_ids, "--token-ids", "prompt");
  if (!is_byte_level(model, config)) {
    throw InvalidArgument(fmt::format(
        "{} has no byte-level vocabulary ({} tokens); give its prompts as --token-ids, or text to "
        "python -m trimtab.generate",
        model, config.vocab_size));
  }
  if (!text_file.empty()) return read_text_prompts(text_file, config);
  const std::string shipped = (std::filesystem::path(model) / "prompts.txt").string();
  if (!std::filesystem::exists(shipped)) {
    throw InvalidArgument(fmt::format("{} does not exist; give --prompts or --token-ids", shipped));
  }
  return read_text_prompts(shipped, config);
}

std::vector<Prompt> read_sequences(const std::string& model, const ModelConfig& config,
                                   const std::string& file, const std::string& option) {
  if (is_byte_level(model, config)) return read_text_prompts(file, config);
  return read_token_ids(file, option, "sequence");
}

std::vector<std::vector<int32_t>> read_stops(const std::string& model, const ModelConfig& config,
                                             const std::vector<std::string>& texts,
                                             const std::string& token_ids) {
  std::vector<std::vector<int32_t>> stops;
  if (!texts.empty() && !is_byte_level(model, config)) {
    throw InvalidArgument(
        fmt::format("--stop: {} has no byte-level vocabulary ({} tokens); give --stop-ids", model,
                    config.vocab_size));
  }
  for (const std::string& text : texts) {
    const auto bytes = std::as_bytes(std::span(text));
    std::ranges::transform(bytes, std::back_inserter(stops.emplace_back()),
                           [](std::byte byte) { return std::to_integer<int32_t>(byte); });
  }
  if (token_ids.empty()) return stops;
  for (const Prompt& stop : read_token_ids(token_ids, "--stop-ids", "stop")) {
    for (const int32_t id : stop.token_ids) {
      if (id < config.vocab_size) continue;
      throw InvalidArgument(fmt::format("--stop-ids: token id {}, the vocabulary ends at {}", id,
                                        config.vocab_size - 1));
    }
    stops.push_back(stop.token_ids);
  }
  return stops;
}

}  // namespace trimtab::cli
