// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "cli/run/outputs.h"
#include "cli/run/run_result.h"
#include "trimtab/dispatcher_kind.h"

namespace trimtab::cli {

namespace {

void append_speed(std::string& to, const RunResult& result) {
  fmt::format_to(std::back_inserter(to),
                 "{} new tokens in {:.2f} s: {:.0f} tokens/s (new tokens of all prompts; the time "
                 "includes reading {} prompt tokens; {} steps)\n",
                 result.tokens, result.seconds, static_cast<double>(result.tokens) / result.seconds,
                 result.prompt_tokens, result.steps);
  const GenerateProgress& end = result.progress;
  if (end.prompt_seconds > 0) {
    fmt::format_to(std::back_inserter(to),
                   "steps that read prompts: {:.2f} s, {:.0f} prompt tokens/s", end.prompt_seconds,
                   static_cast<double>(result.prompt_tokens) / end.prompt_seconds);
  }
  if (end.decode_seconds > 0) {
    fmt::format_to(std::back_inserter(to), "; the others: {:.2f} s, {:.0f} new tokens/s",
                   end.decode_seconds, static_cast<double>(end.decode_tokens) / end.decode_seconds);
    if (result.decode_bytes > 0 && end.decode_tokens > 0) {
      fmt::format_to(std::back_inserter(to), ", {:.2f} MB read for each: {:.1f} GB/s",
                     1e-6 * result.decode_bytes / static_cast<double>(end.decode_tokens),
                     1e-9 * result.decode_bytes / end.decode_seconds);
    }
  }
  to += "\n\n";
}

// How rows travelled and what the ranks sent each other, where it matters.
void append_wire(std::string& to, const RunResult& result) {
  const auto in_mb = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  const Wire& wire = result.wire;
  if (result.ranks == 1 && wire.results == DType::kF32) return;
  fmt::format_to(std::back_inserter(to), "rows as {}, results as {}, ", wire_name(wire.rows),
                 wire_name(wire.results));
  if (wire.sent.to_ranks == 0) {
    to += "nothing sent: ranks read them in shared memory\n\n";
    return;
  }
  fmt::format_to(std::back_inserter(to), "{:.3f} MB sent to other ranks ({:.3f} between hosts)\n\n",
                 in_mb(wire.sent.to_ranks), in_mb(wire.sent.to_hosts));
}

void append_overlap(std::string& to, const RunResult& result) {
  if (!result.overlap) return;
  fmt::format_to(std::back_inserter(to), "{} of {} steps were two microbatches\n\n",
                 result.overlapped_steps, result.steps);
}

void append_par(std::string& to, const RunResult& result) {
  const bool has_times = !result.par_time_per_layer.empty();
  to += has_times ? "layer    PAR  in time  busiest rank\n" : "layer    PAR  busiest rank\n";
  for (size_t l = 0; l < result.par_per_layer.size(); ++l) {
    const std::vector<int64_t>& load = result.rank_load[l];
    const auto busiest = std::max_element(load.begin(), load.end());
    const int64_t total = std::accumulate(load.begin(), load.end(), int64_t{0});
    fmt::format_to(
        std::back_inserter(to), "{:5} {:6.2f}  {}{} ({:.1f} % of the rows)\n", result.moe_layers[l],
        result.par_per_layer[l],
        has_times ? fmt::format("{:7.2f}  ", result.par_time_per_layer[l]) : "",
        busiest - load.begin(),
        100.0 * static_cast<double>(*busiest) / static_cast<double>(std::max<int64_t>(total, 1)));
  }
  to += "\n";
}

void append_rank_load(std::string& to, const RunResult& result) {
  std::vector<int64_t> load(result.ranks);
  for (const auto& layer : result.rank_load)
    std::ranges::transform(load, layer, load.begin(), std::plus());
  const int64_t total = std::max<int64_t>(std::accumulate(load.begin(), load.end(), int64_t{0}), 1);
  to += " rank        rows   share (all layers)\n";
  for (size_t r = 0; r < load.size(); ++r) {
    fmt::format_to(std::back_inserter(to), "{:5} {:11} {:5.1f} %\n", r, load[r],
                   100.0 * static_cast<double>(load[r]) / static_cast<double>(total));
  }
}

std::string recorded_tokens(const RunResult& result) {
  if (result.tokens_sampled == 0) return ", no tokens (a .json has a sample of them, for traffic)";
  return fmt::format(", and {} of {} tokens{}", result.tokens_sampled, result.tokens_routed,
                     result.sources_recorded ? " with the ranks that they come from" : "");
}

void append_eplb(std::string& to, const RunResult& result) {
  to += "\n";
  if (result.metrics) {
    const BalanceMetrics& metrics = *result.metrics;
    fmt::format_to(
        std::back_inserter(to), "last window, for rule {}: PAR {:.3f}{}\n", metrics.split,
        metrics.par_rows,
        metrics.par_time ? fmt::format(", of a step in time {:.3f}", *metrics.par_time) : "");
    fmt::format_to(std::back_inserter(to), "plans not applied: {} rejected, {} failed, {} late\n",
                   metrics.plans_rejected, metrics.plans_failed, metrics.plans_late);
  }
  if (result.eplb_mode == "dynamic") {
    const BalanceMetrics& metrics = *result.metrics;
    fmt::format_to(std::back_inserter(to),
                   "balanced: {} replan{} switched {} layers, {} experts moved ({:.1f} MB), {} "
                   "layers rolled back; "
                   "planning took {:.3f} s, steps were held up for {:.3f} s\n",
                   metrics.rebalances, metrics.rebalances == 1 ? "" : "s", result.layers_switched,
                   metrics.moves, static_cast<double>(metrics.moved_bytes) / 1e6,
                   metrics.rolled_back_layers, metrics.plan_seconds, metrics.stall_seconds);
  }
  if (!result.record_file.empty()) {
    fmt::format_to(std::back_inserter(to), "recorded in {}: the loads of {} steps{}\n",
                   result.record_file, result.steps, recorded_tokens(result));
  }
  if (!result.verdict.empty()) {
    fmt::format_to(
        std::back_inserter(to),
        "screened, nothing applied: {} (PAR gain of the last plan on the steps after it {:.3f})\n",
        result.verdict, result.metrics->realised_gain);
  }
  if (!result.par_by_third.empty()) {
    fmt::format_to(std::back_inserter(to),
                   "PAR of each third of the steps, mean over layers: {:.3f}\n",
                   fmt::join(result.par_by_third, ", "));
  }
  if (!result.par_time_by_third.empty()) {
    fmt::format_to(std::back_inserter(to), "PAR of a step in time, of each third: {:.3f}\n",
                   fmt::join(result.par_time_by_third, ", "));
  }
}

}  // namespace

// The rule that chooses replicas, and why it is not another.
std::string split_in_words(const RunResult& result) {
  if (result.split.empty()) return "";
  const bool knows_others = dispatcher_kind(result.dispatcher).shares_out;
  return fmt::format(", replicas chosen by rule {}{}", result.split,
                     knows_others ? "" : " (the only one for " + result.dispatcher + ")");
}

std::string quantised_parts(const RunResult& result) {
  std::string text;
  if (result.linear != result.dtype) text += ", attention and head in " + result.linear;
  if (result.experts != result.dtype) text += ", experts in " + result.experts;
  return text;
}

std::string report_title(const RunResult& result) {
  return fmt::format(
      "{} ({}, {} MoE layers of {} experts, top-{}), {} rank{}{} x {} thread{}, {}{}, {}{}{}, "
      "keys and values in {} ({:.1f} kB a token)\n\n",
      result.model, result.model_type, result.moe_layers.size(), result.num_experts, result.top_k,
      result.ranks, result.ranks == 1 ? "" : "s",
      result.layout ? " (" + name(*result.layout) + ")" : "", result.threads_per_rank,
      result.threads_per_rank == 1 ? "" : "s", result.dispatcher,
      result.progress_thread ? " with progress threads" : "", result.dtype, quantised_parts(result),
      split_in_words(result), result.kv, static_cast<double>(result.kv_bytes_per_token) / 1e3);
}

std::string report_figures(const RunResult& result) {
  std::string report;
  append_speed(report, result);
  append_wire(report, result);
  append_overlap(report, result);
  if (result.force_balance) {
    return report +
           "profile run (--force-balance): tokens went to random experts; no load was recorded\n";
  }
  append_par(report, result);
  append_rank_load(report, result);
  if (result.eplb_mode != "off") append_eplb(report, result);
  report +=
      "\nPAR: peak-to-average rank load over the run; at 1.00 all ranks got the same number of "
      "rows.\n";
  return report;
}

std::string dry_run_text(const RunResult& result) {
  return report_title(result) + in_text(result.memory);
}

std::string text_report(const RunResult& result) {
  std::string report = report_title(result);
  for (int64_t i = 0; i < std::ssize(result.outputs); ++i)
    report += lines_of(result.outputs[i], i, result.has_text);
  return report + report_figures(result);
}

}  // namespace trimtab::cli
