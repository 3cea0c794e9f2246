// SPDX-License-Identifier: Apache-2.0
#include "trimtab/perplexity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>

#include "base/cat.h"
#include "comm/rank_bytes.h"
#include "model/decoder_math.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {

namespace {

using Window = std::span<const int32_t>;

// The tokens [first, first + count) of a window, in one step.
struct Piece {
  int64_t window;
  int64_t first, count;
};

// Throws for what can't be.
int64_t window_of(const ModelConfig& config, const PerplexityOptions& options) {
  const int64_t most = config.max_position_embeddings > 0 ? config.max_position_embeddings
                                                          : std::numeric_limits<int64_t>::max();
  if (options.window == 0) return std::max<int64_t>(most, 2);
  if (options.window < 2 || options.window > most) {
    throw InvalidArgument(cat("a window of ", options.window,
                              " tokens; it has at least 2 and at most max_position_embeddings, ",
                              config.max_position_embeddings));
  }
  return options.window;
}

std::vector<Window> windows_of(std::span<const std::vector<int32_t>> sequences,
                               const ModelConfig& config, int64_t length) {
  std::vector<Window> windows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (const int32_t id : sequences[i]) {
      if (id >= 0 && id < config.vocab_size) continue;
      throw InvalidArgument(cat("sequence ", i + 1, " has token id ", id,
                                ", the vocabulary ends at ", config.vocab_size - 1));
    }
    for (Window rest = sequences[i]; rest.size() >= 2;) {
      const Window window = rest.first(std::min<size_t>(rest.size(), cells(length)));
      windows.push_back(window);
      rest = rest.subspan(window.size());
    }
  }
  if (windows.empty())
    throw InvalidArgument("no sequence has two tokens, so that there is nothing to foretell");
  return windows;
}

// What a group does step by step: its windows one behind the other, in steps that are full.
std::vector<std::vector<Piece>> steps_of_group(const std::vector<Window>& windows, int64_t group,
                                               int64_t groups, int64_t max_tokens) {
  std::vector<std::vector<Piece>> steps;
  int64_t space = 0;
  for (int64_t w = group; w < std::ssize(windows); w += groups) {
    for (int64_t first = 0; first < std::ssize(windows[w]);) {
      if (space == 0) {
        steps.emplace_back();
        space = max_tokens;
      }
      const int64_t count = std::min(space, std::ssize(windows[w]) - first);
      steps.back().push_back({w, first, count});
      first += count;
      space -= count;
    }
  }
  return steps;
}

// -log(softmax(logits)[id]).
double nats_of(std::span<const float> logits, int32_t id) {
  if (!all_finite(logits)) return std::numeric_limits<double>::quiet_NaN();
  const float top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += double{std::exp(logit - top)};
  return std::log(sum) + double{top} - double{logits[cells(id)]};
}

}  // namespace

double Perplexity::value() const {
  return std::exp(nats / static_cast<double>(tokens));
}

double Perplexity::bits_per_token() const {
  return nats / static_cast<double>(tokens) / std::numbers::ln2;
}

Perplexity measure_perplexity(Decoder& decoder, std::span<const std::vector<int32_t>> sequences,
                              const PerplexityOptions& options) {
  const ModelConfig& config = decoder.config();
  const std::vector<Window> windows = windows_of(sequences, config, window_of(config, options));
  const ParallelLayout& layout = decoder.layout();
  Communicator& comm = decoder.comm();
  const int64_t groups = layout.dp, group = layout.dp_rank(comm.rank());
  const int64_t max_tokens = decoder.options().max_tokens;
  // Every group makes as many steps as the one that has most.
  size_t num_steps = 0;
  for (int64_t g = 0; g < groups; ++g)
    num_steps = std::max(num_steps, steps_of_group(windows, g, groups, max_tokens).size());
  std::vector<std::vector<Piece>> steps = steps_of_group(windows, group, groups, max_tokens);
  int64_t tokens = 0, done = 0;
  for (int64_t w = group; w < std::ssize(windows); w += groups) tokens += std::ssize(windows[w]);
  steps.resize(num_steps);

  const int64_t vocab = config.vocab_size;
  std::vector<float> logits;
  std::map<int64_t, KvCache> caches;                     // of windows that are under way
  std::vector<double> nats(cells(std::ssize(windows)));  // of this group's windows; 0 elsewhere
  for (const std::vector<Piece>& step : steps) {
    std::vector<Chunk> batch;
    int64_t rows = 0;
    for (const Piece& piece : step) {
      const Window window = windows[piece.window];
      KvCache& cache =
          caches.try_emplace(piece.window, config, std::ssize(window), options.kv).first->second;
      batch.push_back(
          {&cache, window.subspan(cells(piece.first), cells(piece.count)), Chunk::Logits::kAll});
      rows += piece.count;
    }
    logits.resize(cells(rows, vocab));
    decoder.step(batch, Rows(logits.data(), rows, vocab));
    std::span<const float> from = logits;
    for (const Piece& piece : step) {
      const Window window = windows[piece.window];
      for (int64_t t = piece.first; t < piece.first + piece.count; ++t) {
        // The logits behind a window's last token foretell nothing that is known.
        if (t + 1 < std::ssize(window))
          nats[piece.window] += nats_of(from.first(cells(vocab)), window[t + 1]);
        from = from.subspan(cells(vocab));
      }
      if (piece.first + piece.count == std::ssize(window)) caches.erase(piece.window);
    }
    done += rows;
    if (options.progress) options.progress(done, tokens);
  }

  std::vector<std::vector<double>> of_ranks;
  for (const auto& bytes : bytes_of_ranks(comm, std::as_bytes(std::span(nats))))
    of_ranks.push_back(values_of<double>(bytes));
  Perplexity result{.windows = std::ssize(windows)};
  for (int64_t w = 0; w < std::ssize(windows); ++w) {
    result.nats += of_ranks[w % groups * layout.ranks_of_sequences()][w];
    result.tokens += std::ssize(windows[w]) - 1;
  }
  return result;
}

}  // namespace trimtab
