// SPDX-License-Identifier: Apache-2.0
#include "recordings/trtllm_tokens.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "base/cat.h"
#include "recordings/checked_recording.h"
#include "recordings/ids.h"
#include "recordings/json_tokens.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// The tensors of an iteration, all of the same shape, by ascending layers.
using Layers = std::vector<const TrtllmTensor*>;

std::map<int64_t, Layers> by_iteration(const TrtllmFile& file) {
  std::map<int64_t, Layers> iterations;
  std::set<int> layers;
  for (const auto& [key, tensor] : file.tensors()) layers.insert(key.second);
  for (const auto& [key, tensor] : file.tensors()) {
    Layers& all = iterations[key.first];
    // Keys ascend, so that the layers of an iteration come in order, and one that is missing shows.
    const auto expected = std::next(layers.begin(), std::ssize(all));
    if (*expected != key.second)
      tensor.fail(cat("iteration ", key.first, " has no layer ", *expected));
    all.push_back(&tensor);
  }
  for (const auto& [iteration, all] : iterations) {
    if (all.size() != layers.size()) {
      all.back()->fail(
          cat("iteration ", iteration, " has ", all.size(), " of ", layers.size(), " layers"));
    }
  }
  return iterations;
}

void check_shapes(const TrtllmFile& file, int64_t top_k,
                  const std::map<int64_t, Layers>& iterations) {
  for (const auto& [key, tensor] : file.tensors()) {
    tensor.check_whole_numbers();
    if (tensor.dims() != 2 || tensor.shape()[1] < 1)
      tensor.fail("a shape [tokens, top_k] expected");
    if (tensor.shape()[1] != top_k)
      tensor.fail(cat(tensor.shape()[1], " picks of a token; others have ", top_k));
    const int64_t tokens = iterations.at(key.first)[0]->shape()[0];
    if (tensor.shape()[0] != tokens) {
      tensor.fail(cat(tensor.shape()[0], " tokens; the first layer of the iteration has ", tokens));
    }
  }
}

int64_t highest_expert(const TrtllmFile& file) {
  int64_t highest = 0;
  for (const auto& [key, tensor] : file.tensors()) {
    for (int64_t i = 0; i < tensor.shape()[0] * tensor.shape()[1]; ++i)
      highest = std::max(highest, tensor[i]);
  }
  return std::min<int64_t>(highest, kMaxExpertId);
}

// Reads the picks of one token in one layer. Counts them, where the token is no padding.
void take_picks(const TrtllmTensor& tensor, int64_t token, std::span<int32_t> picks,
                std::vector<int64_t>& counts) {
  const auto top_k = std::ssize(picks), experts = std::ssize(counts);
  for (int64_t k = 0; k < top_k; ++k) {
    const int64_t expert = tensor[token * top_k + k];
    if (expert < -1 || expert >= experts)
      tensor.fail(cat("token ", token, " picks expert ", expert, " of ", experts));
    const auto before = picks.first(cells(k));
    if (expert >= 0 && std::ranges::find(before, expert) != before.end())
      tensor.fail(cat("token ", token, " picks expert ", expert, " twice"));
    picks[cells(k)] = static_cast<int32_t>(expert);
    if (expert >= 0) ++counts[cells(expert)];
  }
}

}  // namespace

TrtllmRankTokens read_trtllm_tokens(const TrtllmFile& file, int64_t num_experts, int num_ranks) {
  const auto iterations = by_iteration(file);
  const TrtllmTensor& first = file.tensors().begin()->second;
  const int64_t top_k = first.dims() == 2 ? first.shape()[1] : 1;
  check_shapes(file, top_k, iterations);
  if (top_k > kMaxTopK) first.fail(cat("more than ", kMaxTopK, " experts for one token"));
  const int64_t experts = num_experts > 0 ? num_experts : highest_expert(file) + 1;
  const auto layers = static_cast<int>(iterations.begin()->second.size());
  int64_t records = 0;
  for (const auto& [key, tensor] : file.tensors()) records += tensor.shape()[0] * top_k;
  check_dense(file.name(), std::ssize(iterations), layers, experts, records);
  TokenRecorder recorder(layers, static_cast<int>(experts), static_cast<int>(top_k),
                         sampled_tokens_of_rank(layers, static_cast<int>(top_k), num_ranks));
  TrtllmRankTokens tokens;
  std::vector<int32_t> picks(cells(layers, top_k));
  const Table of_layers(picks, top_k);
  for (const auto& [key, tensor] : file.tensors()) tokens.counts[key].assign(cells(experts), 0);
  for (const auto& [iteration, all] : iterations) {
    std::vector<std::vector<int64_t>*> counts;
    for (auto at = tokens.counts.lower_bound({iteration, 0}); std::ssize(counts) < layers; ++at)
      counts.push_back(&at->second);
    for (int64_t t = 0; t < all[0]->shape()[0]; ++t) {
      for (int layer = 0; layer < layers; ++layer)
        take_picks(*all[cells(layer)], t, of_layers[layer], *counts[cells(layer)]);
      recorder.add(picks);
    }
  }
  tokens.sample = recorder.sample();
  return tokens;
}

void TrtllmPairs::add(const TrtllmFile& file) {
  for (const auto& [key, tensor] : file.tensors()) {
    tensor.check_whole_numbers();
    if (tensor.dims() != 2 || tensor.shape()[0] != tensor.shape()[1] || tensor.shape()[0] < 1 ||
        tensor.shape()[0] > kMaxExperts)
      tensor.fail("a shape [experts, experts] expected");
    const int64_t experts = tensor.shape()[0];
    if (experts_ == 0) experts_ = experts;
    if (experts != experts_) tensor.fail(cat(experts, " experts; others have ", experts_));
    std::vector<int64_t>& counts = counts_[key];
    std::vector<int64_t>& pairs = pairs_[key.second];
    counts.resize(cells(experts));
    pairs.resize(cells(experts, experts));
    for (int64_t i = 0; i < experts; ++i) {
      const int64_t tokens = tensor[i * experts + i];
      if (tokens < 0) tensor.fail(cat("expert ", i, ": the count is negative or exceeds 63 bits"));
      if (__builtin_add_overflow(counts[cells(i)], tokens, &counts[cells(i)]))
        tensor.fail(cat("expert ", i, ": the ranks sum to more than 63 bits hold"));
      for (int64_t j = i + 1; j < experts; ++j) {
        const int64_t both = tensor[i * experts + j];
        int64_t& sum = pairs[cells(i, experts) + cells(j)];
        if (both != tensor[j * experts + i])
          tensor.fail(cat("experts ", i, " and ", j, ": ", both, " tokens picked both, ",
                          tensor[j * experts + i], " the other way round"));
        if (both < 0 || both > tokens || both > tensor[j * experts + j])
          tensor.fail(cat("experts ", i, " and ", j, ": ", both,
                          " tokens picked both, more than picked one"));
        if (__builtin_add_overflow(sum, both, &sum))
          tensor.fail(cat("experts ", i, " and ", j, ": the sum exceeds 63 bits"));
      }
    }
  }
}

TokenSample TrtllmPairs::sample() const {
  TokenSample sample{.num_layers = static_cast<int>(pairs_.size()),
                     .num_experts = static_cast<int>(experts_),
                     .top_k = 2,
                     .is_of_pairs = true};
  std::vector<double> totals;
  for (const auto& [id, pairs] : pairs_)
    totals.push_back(std::accumulate(pairs.begin(), pairs.end(), 0.0));
  if (totals.empty() || std::ranges::min(totals) == 0) return {};
  constexpr double kMost = 9e18;  // below 2^63
  sample.tokens_seen = static_cast<int64_t>(std::min(kMost, std::ranges::max(totals)));
  const int64_t wanted =
      std::min(sample.tokens_seen, sampled_tokens_of_rank(sample.num_layers, 2, 1));
  sample.ids.resize(cells(wanted, sample.num_layers, 2));
  int layer = 0;
  for (const auto& [id, pairs] : pairs_) {
    // Each pair gets its part of the sample, by the middles of equal parts of the total.
    const double part = totals[cells(layer)] / static_cast<double>(wanted);
    double end = 0;
    int64_t taken = 0;
    for (int64_t cell = 0; cell < std::ssize(pairs); ++cell) {
      end += static_cast<double>(pairs[cells(cell)]);
      for (; taken < wanted && (static_cast<double>(taken) + 0.5) * part < end; ++taken) {
        int32_t* to = sample.ids.data() + (taken * sample.num_layers + layer) * 2;
        to[0] = static_cast<int32_t>(cell / experts_);
        to[1] = static_cast<int32_t>(cell % experts_);
      }
    }
    ++layer;
  }
  return sample;
}

}  // namespace trimtab
