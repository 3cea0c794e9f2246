// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/bench/bench_model.h"

namespace trimtab::cli {

namespace {

using bench::ModelRow;
using bench::Spread;
using Json = nlohmann::ordered_json;

Json row_json(const ModelRow& row) {
  Json json;
  const auto add = [&json](const char* name, const Spread& spread) {
    json[name] = spread.median;
    json[fmt::format("{}_quartiles", name)] = {spread.low, spread.high};
  };
  add("ms", row.ms);
  json["tokens_per_second"] = row.tokens_per_second;
  json["bytes"] = row.bytes;
  json["active_experts"] = row.active_experts;
  add("pct_stream", row.pct_stream);
  add("pct_roof", row.pct_roof);
  json["rounds"] = row.rounds;
  return json;
}

// A row behind the keys that name it.
Json named(Json names, const ModelRow& row) {
  names.update(row_json(row));
  return names;
}

void append_row(std::string& to, const ModelRow& row) {
  fmt::format_to(std::back_inserter(to),
                 "{:11.3f} {:10.1f} {:9.3f} {:8.1f} {:7.1f} {:7.1f}  ({:.0f}-{:.0f})\n",
                 row.ms.median, row.tokens_per_second, row.bytes / 1e9, row.active_experts,
                 row.pct_stream.median, row.pct_roof.median, row.pct_roof.low, row.pct_roof.high);
}

constexpr const char* kColumns = "         ms   tokens/s   GB read  experts  % str.  % roof\n";

}  // namespace

std::string bench_model_json(const BenchModelResult& result) {
  Json report = {{"model", result.model},
                 {"model_type", result.model_type},
                 {"ranks", result.ranks},
                 {"threads_per_rank", result.threads_per_rank},
                 {"dispatcher", result.dispatcher},
                 {"isa", kernel_isa()},
                 {"dtype", result.dtype},
                 {"linear", result.linear},
                 {"experts", result.experts},
                 {"kv", result.kv},
                 {"kv_bytes_per_token", result.kv_bytes_per_token},
                 {"weight_bytes", result.weight_bytes},
                 {"expert_bytes", result.expert_bytes},
                 {"load_seconds", result.load_seconds},
                 {"load_peak_bytes", result.peak_bytes}};
  if (result.perplexity) {
    report["perplexity"] = {{"tokens", result.perplexity->tokens},
                            {"windows", result.perplexity->windows},
                            {"value", result.perplexity->value()},
                            {"bits_per_token", result.perplexity->bits_per_token()}};
    return report.dump(1) + "\n";
  }
  report["stream_gbytes"] = 1e-9 * result.stream;
  report["prefill"] = Json::array();
  for (const ModelRow& row : result.prefill) {
    report["prefill"].push_back(named({{"tokens", row.tokens}, {"steps", row.steps}}, row));
  }
  report["decode"] = Json::array();
  for (const ModelRow& row : result.decode) {
    report["decode"].push_back(named({{"batch", row.batch}, {"context", row.context}}, row));
  }
  return report.dump(1) + "\n";
}

std::string bench_model_text(const BenchModelResult& result) {
  std::string report = fmt::format(
      "{} ({}, {} MoE layers of {} experts, top-{}), {} rank{} x {} thread{}, {}, {}, {}\n"
      "attention and head in {}, experts in {}, keys and values in {} ({:.1f} kB a token)\n"
      "{:.3f} GB of weights (an expert {:.3f} MB), loaded in {:.1f} s with at most {:.3f} GB of "
      "memory\n",
      result.model, result.model_type, result.moe_layers, result.num_experts, result.top_k,
      result.ranks, result.ranks == 1 ? "" : "s", result.threads_per_rank,
      result.threads_per_rank == 1 ? "" : "s", result.dispatcher, kernel_isa(), result.dtype,
      result.linear, result.experts, result.kv,
      1e-3 * static_cast<double>(result.kv_bytes_per_token),
      1e-9 * static_cast<double>(result.weight_bytes),
      1e-6 * static_cast<double>(result.expert_bytes), result.load_seconds,
      1e-9 * static_cast<double>(result.peak_bytes));
  if (result.perplexity) {
    const Perplexity& found = *result.perplexity;
    return report + fmt::format(
                        "\nperplexity {:.5f} ({:.5f} bits a token) over {} tokens of {} "
                        "sequence{}\n",
                        found.value(), found.bits_per_token(), found.tokens, found.windows,
                        found.windows == 1 ? "" : "s");
  }
  fmt::format_to(std::back_inserter(report), "stream of cold memory {:.1f} GB/s\n",
                 1e-9 * result.stream);
  if (!result.prefill.empty()) {
    fmt::format_to(std::back_inserter(report), "\nprompt of {}", kColumns);
    for (const ModelRow& row : result.prefill) {
      fmt::format_to(std::back_inserter(report), "{:9}", row.tokens);
      append_row(report, row);
    }
  }
  if (!result.decode.empty()) {
    fmt::format_to(std::back_inserter(report), "\ncontext  batch{}", kColumns);
    for (const ModelRow& row : result.decode) {
      fmt::format_to(std::back_inserter(report), "{:7} {:6}", row.context, row.batch);
      append_row(report, row);
    }
  }
  return report +
         "\nMedians over rounds; ms and GB read are those of a prompt or a decode step, tokens/s "
         "and "
         "GB read of all ranks.\n"
         "experts: those with rows, in a layer and step. % str.: GB read over the time, of the "
         "stream. % roof: of the\n"
         "least time that stream and peaks allow; in brackets the quartiles.\n";
}

}  // namespace trimtab::cli
