// SPDX-License-Identifier: Apache-2.0
#include "cli/run/prompts.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
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

int32_t parse_id(std::string_view digits, const std::string& source) {
  int32_t id = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (error != std::errc() || end != digits.data() + digits.size() || id < 0) {
    throw FormatError(source, -1, "\"" + std::string(digits) + "\" is not a token id");
  }
  return id;
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

std::vector<Prompt> read_text_prompts(const std::string& file, const ModelConfig& config) {
  const std::string content = read_file(file);
  std::vector<Prompt> prompts;
  for (std::string_view line : split(content, "\r\n")) {
    Prompt prompt{std::string(line), {}};
    if (config.bos_token_id >= 0) prompt.token_ids.push_back(config.bos_token_id);
    for (const char c : line) prompt.token_ids.push_back(static_cast<unsigned char>(c));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) throw FormatError(file, -1, "has no prompt (one a line)");
  return prompts;
}

std::vector<Prompt> read_token_id_prompts(const std::string& argument) {
  const bool is_inline = argument.find_first_not_of("0123456789,; \t\n") == std::string::npos;
  const std::string source = is_inline ? "--token-ids" : argument;
  if (!is_inline && !std::filesystem::exists(argument)) {
    throw InvalidArgument("--token-ids " + argument + ": neither a file nor token ids");
  }
  const std::string content = is_inline ? argument : read_file(argument);
  std::vector<Prompt> prompts;
  for (const std::string_view part : split(content, ";\r\n")) {
    Prompt prompt;
    for (const std::string_view digits : split(part, ", \t")) {
      prompt.token_ids.push_back(parse_id(digits, source));
      prompt.text += (prompt.text.empty() ? "" : ",") + std::string(digits);
    }
    if (!prompt.token_ids.empty()) prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) throw FormatError(source, -1, "has no token id");
  return prompts;
}

}  // namespace trimtab::cli
