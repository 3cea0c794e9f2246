// SPDX-License-Identifier: Apache-2.0
// Where prompts come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trimtab/checkpoint.h"

namespace trimtab::cli {

struct Prompt {
  std::string text;  // as it was given
  std::vector<int32_t> token_ids;
};

// A vocabulary of the 256 bytes and at most 64 special tokens, and no tokenizer file in the model's
// directory.
bool is_byte_level(const std::string& model, const ModelConfig& config);

// One prompt a line, empty lines left out, the bytes as token ids after the config's
// beginning-of-sequence token if it has one. Throws FormatError when the file can't be read or has
// no prompt.
std::vector<Prompt> read_text_prompts(const std::string& file, const ModelConfig& config);

// Prompts as token ids, separated by commas or blanks; prompts are separated by ';' or end of line.
// argument: a file, or the ids themselves. Nothing is added to them. Throws FormatError or
// InvalidArgument.
std::vector<Prompt> read_token_id_prompts(const std::string& argument);

}  // namespace trimtab::cli
