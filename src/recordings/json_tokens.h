// SPDX-License-Identifier: Apache-2.0
// The sampled tokens of a recording, as an object of Trimtab's JSON.
#pragma once

#include <string>

#include "recordings/json_reader.h"
#include "trimtab/traffic.h"

namespace trimtab {

// The most experts that one token may pick in a layer: the search for ids that come twice is
// quadratic.
constexpr int64_t kMaxTopK = 1024;

// Reads the next value, with the byte of each token for later errors. The layers and experts of the
// sample stand in the loads, which may come behind it: finish_json_tokens() has them.
struct JsonTokens {
  TokenSample sample;
  int64_t row = 0;              // numbers of a token
  std::vector<int64_t> row_at;  // [tokens]
  int64_t at = 0;
};
JsonTokens read_json_tokens(JsonReader& json);
// Throws FormatError for a token that does not have top_k different experts in each layer.
TokenSample finish_json_tokens(JsonTokens tokens, const std::string& file, int num_layers,
                               int num_experts);

std::string json_tokens(const TokenSample& sample);

}  // namespace trimtab
