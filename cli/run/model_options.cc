// SPDX-License-Identifier: Apache-2.0
#include "cli/run/model_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "cli/options/dispatchers.h"
#include "cli/run/wire.h"
#include "trimtab/error.h"
#include "trimtab/kv_format.h"

namespace trimtab::cli {

bool is_for_decoders(const DispatcherKind& kind) {
  return kind.format != Format::kBatched && kind.output_is_reduced;
}

void add_model(Command& command, ModelOptions& options) {
  command.text("MODEL", options.model, "Directory of the model (Hugging Face layout)")
      .required()
      .type("");
  command
      .number("--ranks", options.ranks,
              "Ranks (threads of this process) that share the experts [1]")
      .between(1, 1024);
}

void add_model_settings(Command& command, ModelOptions& options) {
  std::vector<std::string> dispatchers = dispatchers_that(is_for_decoders);
  dispatchers.insert(dispatchers.begin(), "auto");
  command
      .text("--dispatcher", options.dispatcher,
            fmt::format("How tokens get to experts: {}", fmt::join(dispatchers, ", ")))
      .one_of(dispatchers)
      .type("NAME")
      .shows_default();
  command
      .text(
          "--wire", options.wire,
          fmt::format("How rows travel between ranks, and results back: {}; with any but f32 the "
                      "dispatcher must send them: {} [rows as the experts take them, results in "
                      "f32]",
                      fmt::join(wire_types(), ", "), dispatcher_names([](const DispatcherKind& k) {
                        return is_for_decoders(k) && k.sends_results;
                      })))
      .one_of(wire_types())
      .type("NAME");
  add_weight_formats(command, options.formats);
  command
      .text("--kv", options.kv,
            "How keys and values of a sequence are kept: f32, bf16 (half of the memory) or i8 "
            "(about a quarter); the fewer bytes, the faster are steps of long contexts")
      .parsed_by([](const std::string& text) { parse_kv_format(text); })
      .type("FORMAT")
      .shows_default();
  command
      .number("--threads-per-rank", options.threads_per_rank,
              "Compute threads of each rank [the cores that the process may use, shared out]")
      .between(1, 1024);
  command
      .number("--row-budget", options.row_budget,
              "Rows that a rank's experts get at once, times those of level ranks in a full step: "
              "memory is reserved for so many, and what is more takes more rounds; 0: for all rows "
              "that there can be")
      .between_reals(0, 1e6)
      .type("X")
      .shows_default();
  command
      .number("--timeout", options.timeout,
              "Seconds that a rank waits for another before it gives up")
      .between(1, 1'000'000)
      .type("S")
      .shows_default();
}

std::optional<DType> wire_of(const ModelOptions& options) {
  return options.wire.empty() ? std::nullopt : std::optional(wire_type(options.wire));
}

int threads_per_rank(const ModelOptions& options, const Ranks& ranks) {
  constexpr int kMaxThreads = 4096;
  const int threads =
      options.threads_per_rank > 0 ? options.threads_per_rank : ranks.threads_of_a_rank();
  if (int64_t{ranks.count()} * threads > kMaxThreads) {
    throw InvalidArgument(fmt::format("{} ranks x {} threads are more than {} threads",
                                      ranks.count(), threads, kMaxThreads));
  }
  return threads;
}

}  // namespace trimtab::cli
