// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/dispatch/dispatch_bench.h"
#include "cli/line_printer.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "cli/validators.h"

namespace trimtab::cli {

namespace {

using bench::DispatchRow;
using bench::Spread;
using Json = nlohmann::ordered_json;

const std::map<std::string, DType> kDTypes = {
    {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"int8", DType::kI8}, {"mxfp8", DType::kF8E4M3}};

constexpr const char* kFooter = R"(
What it does. Every rank has --tokens tokens with --top-k different experts each, at random, and experts that return the
rows that they get. The result is checked first. Then each round times bringing the rows to the experts, bringing f32
results back and summing them, and, on all ranks at once, a memcpy of as many bytes as both have. Times are means of the
ranks' own times, since more ranks than cores share the cores; what is printed are medians over the rounds.

Under mpiexec each process is a rank, on one host or several.

Dispatchers: pull, pull_batched, all_gather, all_to_all, mc2, packed, hybrid (with --hosts), and source: the pipeline of
the dispatcher that all_to_all is compared with (permute, all-to-all, permute again), step by step.

--json: {rows: [...]} with dispatcher, backend, ranks, hosts, tokens, hidden, top_k, experts, dtype, ms_dispatch,
ms_combine, ms_memcpy, pct_of_memcpy, quartiles of each (ms_dispatch_quartiles and so on) and rounds.

Exit status: 0 done, 1 a result was wrong or it failed, 2 wrong usage.

Examples
  trimtab bench dispatch
  trimtab bench dispatch --dispatcher source,pull --tokens 512 --seconds 5 --json
  trimtab bench dispatch --dispatcher packed,hybrid,all_to_all --hosts 2
)";

// Where the rows were measured.
struct Setting {
  const char* backend = "threads";
  int ranks = 0;
  int hosts = 1;
};

// Threads of a host stand side by side.
GroupOptions pretended_hosts(const BenchDispatchOptions& options) {
  GroupOptions group;
  const int ranks = options.ranks > 0 ? options.ranks : Ranks::kDefaultThreads;
  for (int r = 0; r < ranks; ++r) group.hosts.push_back(r * options.hosts / ranks);
  return group;
}

std::vector<DispatchRow> measure(const BenchDispatchOptions& options, const Ranks& ranks, Setting& setting) {
  std::vector<DispatchRow> rows;
  LinePrinter printer(ranks.self() != 0);
  setting.ranks = ranks.count();
  if (ranks.are_processes()) setting.backend = "mpi";
  for (const int64_t tokens : options.tokens) {
    for (const std::string& dispatcher : options.dispatchers) {
      printer.status(fmt::format("{}, {} tokens", dispatcher, tokens));
      const bench::DispatchCase subject{
          dispatcher, tokens, options.hidden, options.top_k, options.num_experts, kDTypes.at(options.dtype)};
      const auto body = [&](Communicator& comm) {
        const DispatchRow row = bench_dispatch(comm, subject, {.seconds = options.seconds});
        if (comm.rank() != 0) return;
        setting.hosts = 1 + *std::ranges::max_element(comm.hosts());
        rows.push_back(row);
      };
      ranks.run(body);
    }
  }
  printer.finish("verified and measured");
  return rows;
}

std::string json_report(const std::vector<DispatchRow>& rows, const BenchDispatchOptions& options,
                        const Setting& setting) {
  Json list = Json::array();
  for (const DispatchRow& row : rows) {
    Json json = {{"dispatcher", row.subject.dispatcher},
                 {"backend", setting.backend},
                 {"ranks", setting.ranks},
                 {"hosts", setting.hosts},
                 {"tokens", row.subject.tokens},
                 {"hidden", row.subject.hidden},
                 {"top_k", row.subject.top_k},
                 {"experts", row.subject.num_experts},
                 {"dtype", options.dtype}};
    const auto add = [&json](const char* name, const Spread& spread) {
      json[name] = spread.median;
      json[fmt::format("{}_quartiles", name)] = {spread.low, spread.high};
    };
    add("ms_dispatch", row.ms_dispatch);
    add("ms_combine", row.ms_combine);
    add("ms_memcpy", row.ms_memcpy);
    add("pct_of_memcpy", row.pct_of_memcpy);
    json["rounds"] = row.rounds;
    list.push_back(std::move(json));
  }
  return Json{{"rows", std::move(list)}}.dump(1) + "\n";
}

std::string text_report(const std::vector<DispatchRow>& rows, const BenchDispatchOptions& options,
                        const Setting& setting) {
  std::string report = fmt::format(
      "{} ranks ({}), {} host{}, hidden {}, top-k {} of {} experts, {}\n\n"
      "dispatcher    tokens  ms dispatch  ms combine  ms memcpy  % of memcpy (quartiles)\n",
      setting.ranks, setting.backend, setting.hosts, setting.hosts == 1 ? "" : "s", options.hidden, options.top_k,
      options.num_experts, options.dtype);
  for (const DispatchRow& row : rows) {
    fmt::format_to(std::back_inserter(report), "{:12} {:7} {:12.3f} {:11.3f} {:10.3f} {:9.1f}  ({:.0f}-{:.0f})\n",
                   row.subject.dispatcher, row.subject.tokens, row.ms_dispatch.median, row.ms_combine.median,
                   row.ms_memcpy.median, row.pct_of_memcpy.median, row.pct_of_memcpy.low, row.pct_of_memcpy.high);
  }
  return report + "\n% of memcpy: the time to copy as many bytes, of the time for dispatch and combine.\n";
}

}  // namespace

void add_bench_dispatch(CLI::App& bench, BenchDispatchOptions& options) {
  CLI::App* dispatch = bench.add_subcommand("dispatch", "Time bringing tokens to their experts and back");
  const auto count = [&](const char* name, int& value, int most, const char* about) {
    dispatch->add_option(name, value, about)->check(one_to(most))->type_name("N")->capture_default_str();
  };
  dispatch->add_option("--dispatcher", options.dispatchers, "Which")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->capture_default_str();
  dispatch->add_option("--tokens", options.tokens, "Tokens of each rank")
      ->delimiter(',')
      ->check(one_to(1 << 16))
      ->type_name("N,...")
      ->capture_default_str();
  dispatch->add_option("--ranks", options.ranks, "Ranks, threads of this process [4]")
      ->check(one_to(1024))
      ->type_name("N");
  count("--hosts", options.hosts, 1024, "Pretend that the ranks are spread over so many hosts");
  count("--hidden", options.hidden, 1 << 20, "Elements of a row");
  count("--top-k", options.top_k, 1024, "Experts of a token");
  count("--experts", options.num_experts, 1 << 16, "Experts of all ranks");
  dispatch->add_option("--dtype", options.dtype, "Of the rows that go to the experts: f32, bf16, int8, mxfp8")
      ->check(CLI::IsMember(kDTypes).description(""))
      ->type_name("NAME")
      ->capture_default_str();
  dispatch->add_option("--seconds", options.seconds, "For each row of the result, at least 7 rounds")
      ->check(CLI::Range(0.0, 3600.0).description(""))
      ->type_name("S")
      ->capture_default_str();
  dispatch->add_flag("--json", options.json, "One JSON object on standard output instead of text");
  dispatch->footer(kFooter);
  dispatch->callback([&options] {
    const int threads = options.ranks > 0 ? options.ranks : Ranks::kDefaultThreads;
    if (options.hosts > threads) throw CLI::ValidationError("--hosts", "more hosts than ranks");
    if (options.top_k > options.num_experts) throw CLI::ValidationError("--top-k", "more picks than experts");
    const Ranks ranks(options.ranks, pretended_hosts(options));
    Setting setting;
    const std::vector<DispatchRow> rows = measure(options, ranks, setting);
    if (ranks.self() != 0) return;
    print_report(options.json ? json_report(rows, options, setting) : text_report(rows, options, setting));
  });
}

}  // namespace trimtab::cli
