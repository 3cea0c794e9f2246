// SPDX-License-Identifier: Apache-2.0
// Reads prompts: text or token ids, from a file or from the command line.
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

// The prompts of a run, which has either a file of text, token ids, or nothing: then
// MODEL/prompts.txt.
//
// Text has one prompt a line, so that prompt i is line i; its bytes are token ids, after the
// config's beginning-of-sequence token if it has one, and then a line may be empty. token_ids is a
// file or the ids themselves, separated by commas or blanks, the prompts by ';' or end of line;
// nothing is added to them, and none may be empty. Throws FormatError for a file that can't be
// read, has no prompt or has an empty one, InvalidArgument for a model that needs token ids.
std::vector<Prompt> read_prompts(const std::string& model, const ModelConfig& config,
                                 const std::string& text_file, const std::string& token_ids);

// The sequences of a file that an option names: text, one a line, as read_prompts() reads it, where
// the vocabulary is bytes, else token ids, as it reads those (or the ids themselves).
std::vector<Prompt> read_sequences(const std::string& model, const ModelConfig& config,
                                   const std::string& file, const std::string& option);

// What ends an output: --stop as bytes, --stop-ids as read_prompts() reads token ids. Throws
// InvalidArgument for texts where the model needs token ids, and for ids outside the vocabulary.
std::vector<std::vector<int32_t>> read_stops(const std::string& model, const ModelConfig& config,
                                             const std::vector<std::string>& texts,
                                             const std::string& token_ids);

}  // namespace trimtab::cli
