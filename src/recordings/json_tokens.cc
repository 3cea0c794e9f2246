// SPDX-License-Identifier: Apache-2.0
#include "recordings/json_tokens.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/quoted.h"
#include "recordings/ids.h"
#include "recordings/json_table.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr int kMaxRanks = 1 << 20;

}  // namespace

JsonTokens read_json_tokens(JsonReader& json) {
  JsonTokens tokens;
  tokens.at = json.offset();
  TokenSample& sample = tokens.sample;
  bool has_ids = false;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    const int64_t at = json.offset();
    if (key == "top_k") {
      sample.top_k = static_cast<int>(json.integer(1, kMaxTopK));
    } else if (key == "seen") {
      sample.tokens_seen = json.integer(1, kMaxCount);
    } else if (key == "stride") {
      sample.stride = json.integer(1, kMaxCount);
    } else if (key == "num_ranks") {
      sample.num_ranks = static_cast<int>(json.integer(1, kMaxRanks));
    } else if (key == "source_rank") {
      const IntTable ranks = read_table(json, key, 1, 1, kMaxRanks - 1);
      sample.source_rank.assign(ranks.values.begin(), ranks.values.end());
    } else if (key == "of") {
      if (json.string() != "pairs") json.fail(at, "\"pairs\" expected");
      sample.is_of_pairs = true;
    } else if (key == "ids") {
      IntTable ids = read_table(json, key, 2, 2, kMaxExpertId);
      if (ids.values.empty()) json.fail(at, "ids: no token");
      sample.ids.assign(ids.values.begin(), ids.values.end());
      tokens.row = ids.shape[1];
      tokens.row_at = std::move(ids.row_at);
      has_ids = true;
    } else {
      json.fail(at, cat("unknown key ", json_quoted(key)));
    }
  }
  const auto need = [&](const char* name, bool there) {
    if (!there) json.fail(tokens.at, cat("sampled tokens without ", json_quoted(name)));
  };
  need("top_k", sample.top_k > 0);
  need("seen", sample.tokens_seen > 0);
  need("ids", has_ids);
  const auto count = std::ssize(sample.ids) / tokens.row;
  if (sample.tokens_seen < count)
    json.fail(tokens.at, cat(count, " sampled tokens of ", sample.tokens_seen));
  if (sample.source_rank.empty() != (sample.num_ranks == 0))
    json.fail(tokens.at, "\"source_rank\" and \"num_ranks\" come together");
  if (sample.num_ranks == 0) return tokens;
  if (std::ssize(sample.source_rank) != count)
    json.fail(tokens.at, cat(sample.source_rank.size(), " source ranks for ", count, " tokens"));
  const int most = std::ranges::max(sample.source_rank);
  if (most >= sample.num_ranks)
    json.fail(tokens.at, cat("a token comes from rank ", most, " of ", sample.num_ranks));
  return tokens;
}

TokenSample finish_json_tokens(JsonTokens tokens, const std::string& file, int num_layers,
                               int num_experts) {
  TokenSample sample = std::move(tokens.sample);
  sample.num_layers = num_layers;
  sample.num_experts = num_experts;
  if (tokens.row != int64_t{num_layers} * sample.top_k) {
    throw FormatError(file, tokens.at,
                      cat("sampled tokens of ", tokens.row, " experts; ", num_layers, " layers x ",
                          sample.top_k, " expected"));
  }
  for (int64_t t = 0; t < sample.num_tokens(); ++t) {
    for (int layer = 0; layer < num_layers; ++layer) {
      const std::span<const int32_t> picks = sample.picks(t, layer);
      for (size_t k = 0; k < picks.size(); ++k) {
        const bool twice = std::find(picks.begin(), picks.begin() + static_cast<int64_t>(k),
                                     picks[k]) != picks.begin() + static_cast<int64_t>(k);
        if (!twice && picks[k] < num_experts) continue;
        throw FormatError(
            file, tokens.row_at[cells(t)],
            twice ? cat("token ", t, " picks expert ", picks[k], " twice in layer ", layer)
                  : cat("token ", t, " picks expert ", picks[k], " of ", num_experts));
      }
    }
  }
  return sample;
}

std::string json_tokens(const TokenSample& sample) {
  std::string out = cat("{\"top_k\": ", sample.top_k, ", \"seen\": ", sample.tokens_seen,
                        ", \"stride\": ", sample.stride);
  if (sample.is_of_pairs) out += ", \"of\": \"pairs\"";
  if (!sample.source_rank.empty()) {
    out += cat(", \"num_ranks\": ", sample.num_ranks, ",\n\"source_rank\": ");
    append_list<int32_t>(out, sample.source_rank);
  }
  out += ",\n\"ids\": ";
  append_rows(out, Table<const int32_t>(sample.ids, int64_t{sample.num_layers} * sample.top_k));
  return out + "}";
}

}  // namespace trimtab
