// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "cli/run/run_result.h"

namespace trimtab::cli {

namespace {

using Json = nlohmann::ordered_json;

Json eplb_json(const RunResult& result) {
  const BalanceMetrics metrics = result.metrics.value_or(BalanceMetrics());
  Json json = {{"mode", result.eplb_mode},
               {"replans", metrics.rebalances},
               {"layers_switched", result.layers_switched},
               {"moves", metrics.moves},
               {"moved_bytes", metrics.moved_bytes},
               {"rolled_back", metrics.rolled_back_layers},
               {"plans_rejected", metrics.plans_rejected},
               {"plans_failed", metrics.plans_failed},
               {"plans_late", metrics.plans_late},
               {"split", result.split},
               {"stall_seconds", metrics.stall_seconds},
               {"plan_seconds", metrics.plan_seconds},
               {"par_by_third", result.par_by_third},
               {"predicted_gain", metrics.predicted_gain},
               {"realised_gain", metrics.realised_gain}};
  if (result.metrics) json["par_rows"] = metrics.par_rows;
  if (metrics.par_time) json["par_time"] = *metrics.par_time;
  if (!result.par_time_by_third.empty()) json["par_time_by_third"] = result.par_time_by_third;
  if (!result.verdict.empty()) json["verdict"] = result.verdict;
  if (!result.record_file.empty()) {
    json["tokens_sampled"] = result.tokens_sampled;
    json["tokens_routed"] = result.tokens_routed;
    json["sources"] = result.sources_recorded ? "recorded" : "even";
  }
  return json;
}

Json layout_json(const ParallelLayout& layout) {
  return {{"tp", layout.tp},
          {"dp", layout.dp},
          {"pcp", layout.pcp},
          {"ep", layout.ep},
          {"sp", layout.sp && layout.ep}};
}

Json memory_json(const RunMemory& memory) {
  Json ranks = Json::array();
  for (const RankMemory& rank : memory.ranks) {
    ranks.push_back({{"weights", rank.weights},
                     {"own_weights", rank.own_weights},
                     {"expert_slots", rank.expert_slots},
                     {"expert_spares", rank.expert_spares},
                     {"workspace", rank.workspace},
                     {"kv", rank.kv},
                     {"logits", rank.logits}});
  }
  return {{"total", memory.total()},
          {"shares_weights", memory.shares_weights},
          {"weights_mapped", memory.weights_mapped},
          {"ranks", std::move(ranks)}};
}

}  // namespace

std::string dry_run_json(const RunResult& result) {
  Json report = {
      {"model", result.model},
      {"model_type", result.model_type},
      {"ranks", result.ranks},
      {"threads_per_rank", result.threads_per_rank},
      {"dispatcher", result.dispatcher},
      {"wire",
       {{"rows", wire_name(result.wire.rows)}, {"results", wire_name(result.wire.results)}}},
      {"dtype", result.dtype},
      {"linear", result.linear},
      {"experts", result.experts},
      {"kv", result.kv},
      {"kv_bytes_per_token", result.kv_bytes_per_token},
      {"dry_run", true}};
  if (!result.split.empty()) report["split"] = result.split;
  if (result.layout) report["layout"] = layout_json(*result.layout);
  report["memory"] = memory_json(result.memory);
  return report.dump(1) + "\n";
}

std::string json_report(const RunResult& result) {
  Json outputs = Json::array();
  for (const Output& output : result.outputs) {
    outputs.push_back({{"prompt", output.prompt},
                       {"prompt_tokens", output.prompt_tokens},
                       {"token_ids", output.token_ids},
                       {"text", output.text},
                       {"finish", output.finish}});
  }
  Json report = {{"model", result.model},
                 {"model_type", result.model_type},
                 {"ranks", result.ranks},
                 {"threads_per_rank", result.threads_per_rank},
                 {"dispatcher", result.dispatcher},
                 {"wire",
                  {{"rows", wire_name(result.wire.rows)},
                   {"results", wire_name(result.wire.results)},
                   {"bytes", result.wire.sent.to_ranks},
                   {"bytes_between_hosts", result.wire.sent.to_hosts}}},
                 {"dtype", result.dtype},
                 {"linear", result.linear},
                 {"experts", result.experts},
                 {"kv", result.kv},
                 {"kv_bytes_per_token", result.kv_bytes_per_token},
                 {"progress_thread", result.progress_thread},
                 {"force_balance", result.force_balance},
                 {"steps", result.steps},
                 {"prompt_tokens", result.prompt_tokens},
                 {"tokens", result.tokens},
                 {"seconds", result.seconds},
                 {"tokens_per_second", static_cast<double>(result.tokens) / result.seconds},
                 {"prompt_seconds", result.progress.prompt_seconds},
                 {"decode_seconds", result.progress.decode_seconds},
                 {"decode_tokens", result.progress.decode_tokens},
                 {"decode_bytes", static_cast<int64_t>(result.decode_bytes)},
                 {"moe_layers", result.moe_layers},
                 {"par_per_layer", result.par_per_layer},
                 {"rank_load", result.rank_load}};
  if (result.sampling.temperature > 0) {
    report["sampling"] = {{"temperature", result.sampling.temperature},
                          {"top_k", result.sampling.top_k},
                          {"top_p", result.sampling.top_p},
                          {"min_p", result.sampling.min_p}};
  }
  if (!result.split.empty()) report["split"] = result.split;
  if (result.overlap) report["overlap"] = {{"steps", result.overlapped_steps}};
  if (result.layout) report["layout"] = layout_json(*result.layout);
  report["memory"] = memory_json(result.memory);
  if (!result.par_time_per_layer.empty()) report["par_time_per_layer"] = result.par_time_per_layer;
  if (result.eplb_mode != "off") report["eplb"] = eplb_json(result);
  report["outputs"] = std::move(outputs);
  return report.dump(1) + "\n";
}

}  // namespace trimtab::cli
