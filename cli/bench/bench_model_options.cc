// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_model_options.h"

#include <limits>

#include "cli/bench/bench_model.h"
#include "cli/bench/bench_options.h"

namespace trimtab::cli {

namespace {

constexpr int64_t kMostTokens = 1 << 24;

constexpr const char* kModelFooter = R"(
What it does. Loads the model as trimtab run does, then times prompts of --prefill tokens and, for
each --batch and --context, decode steps of one token of each sequence behind so many positions.
Token ids are random. In every round the stream of cold memory and the peaks of the dot products are
measured first, so that a busy neighbour slows both sides alike; what it prints are medians and
quartiles over the rounds.

Bytes are those of weights, keys and values that a step reads: all weights but experts without rows.
% of roof: of the least time for the bytes and operations of each expert and of the rest. Ranks have
sequences of their own and read attention and the head each for itself.

--perplexity FILE measures how well the model foretells a text instead: text, one sequence a line,
where the vocabulary is bytes, else token ids as trimtab run --token-ids takes them. Sequences
longer than --window are cut. Run it once for each format to compare.

--json: {model, ..., prefill: [...], decode: [...]} or {model, ..., perplexity: {...}};
docs/bench.md has the keys.

Exit status: 0 done, 1 it failed, 2 wrong usage. TRIMTAB_ISA chooses the kernels.

Examples
  trimtab bench model models/tiny-moe
  trimtab bench model Qwen3-30B-A3B --dtype bf16 --experts w4a8 --batch 1,16 --context 256,4096
  trimtab bench model models/tiny-moe --dtype bf16 --experts w4a8 --perplexity text.txt --json
)";

void add_sizes(Command& model, BenchModelOptions& options) {
  const auto list = [&](const char* name, std::vector<int64_t>& values, int64_t least,
                        const char* about) {
    return model.list(name, values, about).between(least, kMostTokens).type("N,...");
  };
  list("--batch", options.batches, 1, "Sequences of each rank in a decode step").shows_default();
  list("--context", options.contexts, 0,
       "Positions of each before that step [256, where the model has so many]");
  list("--prefill", options.prefill, 1, "Tokens of a prompt [512,2048, where it has so many]");
  model.number("--seconds", options.seconds, "For each row of the result, and at least --rounds")
      .between_reals(0.0, 3600.0)
      .type("S")
      .shows_default();
  model.number("--rounds", options.rounds, "Rounds of each row, at least")
      .between(1, 301)
      .shows_default();
  add_cold_memory(model, options.cold_mb);
}

// What has no effect is refused, so that nobody counts on it.
void check(const Command& model, const BenchModelOptions& options) {
  const bool rates = options.perplexity.empty();
  if (rates && model.given("--window"))
    throw UsageError("--window: it has no effect without --perplexity");
  for (const char* option :
       {"--batch", "--context", "--prefill", "--seconds", "--rounds", "--cold-mb"}) {
    if (!rates && model.given(option))
      throw UsageError(std::string(option) + ": it has no effect with --perplexity");
  }
}

}  // namespace

void add_bench_model(Command& bench, BenchModelOptions& options) {
  Command model = bench.add("model", "Time a whole model, or measure its perplexity");
  add_model(model, options);
  add_sizes(model, options);
  model
      .text("--perplexity", options.perplexity,
            "Measure how well the model foretells this text, or these token ids, instead")
      .type("FILE");
  model
      .number("--window", options.window,
              "Most tokens of a sequence that know of each other [max_position_embeddings]")
      .between(2, kMostTokens);
  add_model_settings(model, options);
  model.flag("--json", options.json, "One JSON object on standard output instead of text");
  model.footer(kModelFooter);
  model.runs([&options, model] {
    check(model, options);
    bench_model(options);
  });
}

}  // namespace trimtab::cli
