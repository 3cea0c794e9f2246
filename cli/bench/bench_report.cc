// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/bench/bench.h"

namespace trimtab::cli {

namespace {

using bench::Spread;
using bench::Timing;
using Json = nlohmann::ordered_json;

constexpr const char* kDotNames[] = {"f32", "bf16", "int8"};

Json isa_json(const IsaResult& one) {
  Json json = {{"isa", one.isa}};
  for (size_t k = 0; k < std::size(kDotNames); ++k) {
    json[fmt::format("{}_gflops", kDotNames[k])] = one.peaks[k];
    json[fmt::format("{}_instruction", kDotNames[k])] = one.dots[k]->instruction;
  }
  json["stream_gbytes"] = one.stream;
  return json;
}

void add_timing(Json& row, const Timing& timing) {
  const auto add = [&row](const char* name, const Spread& spread) {
    row[name] = spread.median;
    row[fmt::format("{}_quartiles", name)] = {spread.low, spread.high};
  };
  add("ms", timing.ms);
  row["gflops"] = timing.gflops;
  add("pct_stream", timing.pct_stream);
  add("pct_peak", timing.pct_peak);
  add("pct_roof", timing.pct_roof);
  row["pairs"] = timing.pairs;
}

std::string in_percent(const Timing& timing) {
  return fmt::format("{:7.1f} {:7.1f} {:7.1f}  ({:.0f}-{:.0f})", timing.pct_stream.median,
                     timing.pct_peak.median, timing.pct_roof.median, timing.pct_roof.low,
                     timing.pct_roof.high);
}

void append_isas(std::string& to, const BenchResult& result) {
  to += "isa           f32 GFLOP/s  bf16 GFLOP/s  int8 GOP/s  stream GB/s\n";
  for (const IsaResult& one : result.isas) {
    fmt::format_to(std::back_inserter(to), "{:12} {:12.1f} {:13.1f} {:11.1f} {:12.1f}\n", one.isa,
                   one.peaks[0], one.peaks[1], one.peaks[2], one.stream);
  }
  fmt::format_to(std::back_inserter(to), "\n{} thread{}; the kernels use {}\n", result.threads,
                 result.threads == 1 ? "" : "s", result.kernels);
}

void append_gemms(std::string& to, const BenchResult& result) {
  to += "\nshape         gemm     dtype       m         ms  GFLOP/s  % str.  % peak  % roof\n";
  for (const bench::GemmRow& row : result.gemms) {
    fmt::format_to(std::back_inserter(to), "{:13} {:8} {:8} {:4} {:10.3f} {:8.1f} {}\n", row.shape,
                   row.gemm, row.dtype, row.m, row.timing.ms.median, row.timing.gflops,
                   in_percent(row.timing));
  }
}

void append_layers(std::string& to, const BenchResult& result) {
  to +=
      "\nmodel         dtype    routing  tokens  active         ms  GFLOP/s  % moving  % str.  % "
      "peak  % roof\n";
  for (const bench::LayerRow& row : result.layers) {
    fmt::format_to(std::back_inserter(to),
                   "{:13} {:8} {:8} {:6} {:7.1f} {:10.3f} {:8.1f} {:9.1f} {}\n", row.model,
                   row.dtype, routing_name(row.routing), row.tokens, row.active_experts,
                   row.timing.ms.median, row.timing.gflops, row.pct_moving, in_percent(row.timing));
  }
}

}  // namespace

std::string bench_json_report(const BenchResult& result) {
  Json isas = Json::array(), rows = Json::array();
  for (const IsaResult& one : result.isas) isas.push_back(isa_json(one));
  for (const bench::GemmRow& row : result.gemms) {
    Json json = {{"shape", row.shape},    {"gemm", row.gemm}, {"dtype", row.dtype},
                 {"isa", result.kernels}, {"m", row.m},       {"threads", result.threads}};
    add_timing(json, row.timing);
    rows.push_back(std::move(json));
  }
  for (const bench::LayerRow& row : result.layers) {
    Json json = {{"model", row.model},
                 {"dtype", row.dtype},
                 {"isa", result.kernels},
                 {"routing", routing_name(row.routing)},
                 {"tokens", row.tokens},
                 {"threads", result.threads},
                 {"active_experts", row.active_experts}};
    add_timing(json, row.timing);
    json["pct_moving"] = row.pct_moving;
    rows.push_back(std::move(json));
  }
  Json report = {
      {"isa", result.kernels}, {"threads", result.threads}, {"ceilings", std::move(isas)}};
  if (!rows.empty()) report["rows"] = std::move(rows);
  return report.dump(1) + "\n";
}

std::string bench_text_report(const BenchResult& result) {
  std::string report;
  append_isas(report, result);
  if (!result.gemms.empty()) append_gemms(report, result);
  if (!result.layers.empty()) append_layers(report, result);
  if (result.gemms.empty() && result.layers.empty()) return report;
  report +=
      "\nMedians over pairs: before each call the peak of the dtype's dot product and the stream "
      "of cold memory were\n"
      "measured, and the call is compared with these two. % roof: of the least time that they "
      "allow, max(operations /\n"
      "peak, bytes of weights / stream), for a layer summed over its active experts; in brackets "
      "the quartiles.\n"
      "One thread is timed by its own clock: what other processes take of its core does not "
      "count.\n";
  if (!result.layers.empty())
    report += "% moving: of the time, spent on sorting rows by expert and summing them up.\n";
  return report;
}

}  // namespace trimtab::cli
