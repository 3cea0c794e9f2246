// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/dispatch/dispatch_bench.h"
#include "bench/dispatch/whole_layer.h"
#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "cli/run/ranks.h"

namespace trimtab::cli {

namespace {

using bench::DispatchRow;
using bench::Spread;
using Json = nlohmann::ordered_json;

const std::map<std::string, DType> kDTypes = {
    {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"int8", DType::kI8}, {"mxfp8", DType::kF8E4M3}};

struct Result {
  const char* backend;
  int ranks;
  int hosts = 1;
  std::vector<DispatchRow> rows;
  std::vector<std::pair<int64_t, bench::WholeLayerRow>> layers;  // with their numbers of tokens
};

// Threads of a host stand side by side.
GroupOptions pretended_hosts(int ranks, int hosts) {
  GroupOptions options;
  for (int r = 0; r < ranks; ++r) options.hosts.push_back(r * hosts / ranks);
  return options;
}

Result measure(const BenchDispatchOptions& options, const Ranks& ranks) {
  Result result{.backend = ranks.are_processes() ? "mpi" : "threads",
                .ranks = ranks.count(),
                .rows = {},
                .layers = {}};
  LinePrinter printer(ranks.self() != 0);
  for (const int64_t tokens : options.tokens) {
    if (options.intermediate > 0) {
      printer.status(fmt::format("layers, {} tokens", tokens));
      const bench::LayerCase subject{
          options.dispatchers,  tokens,         options.hidden, options.top_k, options.num_experts,
          options.intermediate, options.overlap};
      ranks.run([&](Communicator& comm) {
        const auto rows = bench_whole_layer(comm, subject, {.seconds = options.seconds});
        if (comm.rank() != 0) return;
        result.hosts = 1 + *std::ranges::max_element(comm.hosts());
        for (const bench::WholeLayerRow& row : rows) result.layers.emplace_back(tokens, row);
      });
      continue;
    }
    for (const std::string& dispatcher : options.dispatchers) {
      printer.status(fmt::format("{}, {} tokens", dispatcher, tokens));
      const bench::DispatchCase subject{dispatcher,          tokens,
                                        options.hidden,      options.top_k,
                                        options.num_experts, kDTypes.at(options.dtype)};
      const auto body = [&](Communicator& comm) {
        const DispatchRow row = bench_dispatch(comm, subject, {.seconds = options.seconds});
        if (comm.rank() != 0) return;
        result.hosts = 1 + *std::ranges::max_element(comm.hosts());
        result.rows.push_back(row);
      };
      ranks.run(body);
    }
  }
  printer.finish("verified and measured");
  return result;
}

void add(Json& json, const char* name, const Spread& spread) {
  json[name] = spread.median;
  json[fmt::format("{}_quartiles", name)] = {spread.low, spread.high};
}

std::string json_report(const Result& result, const BenchDispatchOptions& options) {
  Json list = Json::array();
  const auto row_of = [&](const std::string& dispatcher, int64_t tokens) {
    return Json{{"dispatcher", dispatcher}, {"backend", result.backend},
                {"ranks", result.ranks},    {"hosts", result.hosts},
                {"tokens", tokens},         {"hidden", options.hidden},
                {"top_k", options.top_k},   {"experts", options.num_experts},
                {"dtype", options.dtype}};
  };
  for (const DispatchRow& row : result.rows) {
    Json json = row_of(row.subject.dispatcher, row.subject.tokens);
    add(json, "ms_dispatch", row.ms_dispatch);
    add(json, "ms_combine", row.ms_combine);
    add(json, "ms_memcpy", row.ms_memcpy);
    add(json, "cpu_ms_dispatch", row.cpu_ms_dispatch);
    add(json, "cpu_ms_combine", row.cpu_ms_combine);
    add(json, "cpu_ms_memcpy", row.cpu_ms_memcpy);
    add(json, "pct_of_memcpy", row.pct_of_memcpy);
    json["rounds"] = row.rounds;
    list.push_back(std::move(json));
  }
  for (const auto& [tokens, row] : result.layers) {
    Json json = row_of(row.dispatcher, tokens);
    json["intermediate"] = options.intermediate;
    add(json, "ms_layer", row.ms_layer);
    add(json, "cpu_ms_layer", row.cpu_ms_layer);
    add(json, "pct_of_first", row.pct_of_first);
    if (options.overlap) {
      add(json, "ms_transfer", row.ms_transfer);
      add(json, "ms_overlapped", row.ms_overlapped);
      add(json, "pct_hidden", row.pct_hidden);
    }
    json["rounds"] = row.rounds;
    list.push_back(std::move(json));
  }
  return Json{{"rows", std::move(list)}}.dump(1) + "\n";
}

std::string layers_report(const Result& result, const BenchDispatchOptions& options) {
  std::string report =
      fmt::format("dispatcher    tokens  ms layer  cpu ms  % of first's cpu (quartiles){}\n",
                  options.overlap ? "  ms transfer  ms overlapped  % hidden (quartiles)" : "");
  for (const auto& [tokens, row] : result.layers) {
    fmt::format_to(std::back_inserter(report),
                   "{:12} {:7} {:9.3f} {:7.3f} {:10.1f}  ({:.1f}-{:.1f})", row.dispatcher, tokens,
                   row.ms_layer.median, row.cpu_ms_layer.median, row.pct_of_first.median,
                   row.pct_of_first.low, row.pct_of_first.high);
    if (options.overlap) {
      fmt::format_to(std::back_inserter(report), " {:14.3f} {:14.3f} {:9.0f}  ({:.0f}-{:.0f})",
                     row.ms_transfer.median, row.ms_overlapped.median, row.pct_hidden.median,
                     row.pct_hidden.low, row.pct_hidden.high);
    }
    report += "\n";
  }
  return report +
         "\nms: of a layer, from beginning to end. cpu ms: what a rank's thread itself ran.\n";
}

std::string text_report(const Result& result, const BenchDispatchOptions& options) {
  std::string report = fmt::format(
      "{} ranks ({}), {} host{}, hidden {}, top-k {} of {} experts, {}{}\n\n", result.ranks,
      result.backend, result.hosts, result.hosts == 1 ? "" : "s", options.hidden, options.top_k,
      options.num_experts,
      options.intermediate > 0 ? fmt::format("intermediate {}, ", options.intermediate) : "",
      options.dtype);
  if (options.intermediate > 0) return report + layers_report(result, options);
  report +=
      "dispatcher    tokens  ms dispatch  ms combine  ms memcpy  cpu ms d+c   memcpy  % of memcpy "
      "(quartiles)\n";
  for (const DispatchRow& row : result.rows) {
    fmt::format_to(
        std::back_inserter(report),
        "{:12} {:7} {:12.3f} {:11.3f} {:10.3f} {:11.3f} {:8.3f} {:9.1f}  ({:.0f}-{:.0f})\n",
        row.subject.dispatcher, row.subject.tokens, row.ms_dispatch.median, row.ms_combine.median,
        row.ms_memcpy.median, row.cpu_ms_dispatch.median + row.cpu_ms_combine.median,
        row.cpu_ms_memcpy.median, row.pct_of_memcpy.median, row.pct_of_memcpy.low,
        row.pct_of_memcpy.high);
  }
  return report +
         "\nms: from beginning to end, waits for other ranks included. cpu ms: what a rank's "
         "thread itself ran, so "
         "that\n"
         "ranks that share a core don't count each other; % of memcpy compares these.\n";
}

}  // namespace

void bench_dispatch(const BenchDispatchOptions& options) {
  const int threads = options.ranks > 0 ? options.ranks : kBenchRanks;
  const Ranks ranks(options.ranks, kBenchRanks, pretended_hosts(threads, options.hosts),
                    options.progress_thread);
  const Result result = measure(options, ranks);
  if (ranks.self() == 0)
    print_report(options.json ? json_report(result, options) : text_report(result, options));
}

}  // namespace trimtab::cli
