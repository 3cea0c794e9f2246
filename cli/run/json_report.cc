// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "cli/run/run_result.h"

namespace trimtab::cli {

namespace {

nlohmann::ordered_json eplb_json(const EplbResult& eplb) {
  nlohmann::ordered_json json = {{"mode", eplb.mode},
                                 {"replans", eplb.replans},
                                 {"layers_switched", eplb.layers_switched},
                                 {"moves", eplb.moves},
                                 {"moved_bytes", eplb.moved_bytes},
                                 {"rolled_back", eplb.rolled_back},
                                 {"stall_seconds", eplb.stall_seconds},
                                 {"plan_seconds", eplb.plan_seconds},
                                 {"par_by_third", eplb.par_by_third},
                                 {"predicted_gain", eplb.predicted_gain},
                                 {"realised_gain", eplb.realised_gain}};
  if (!eplb.verdict.empty()) json["verdict"] = eplb.verdict;
  return json;
}

}  // namespace

std::string json_report(const RunResult& result) {
  using Json = nlohmann::ordered_json;
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
                 {"dispatcher", result.dispatcher},
                 {"dtype", result.dtype},
                 {"experts", result.experts},
                 {"steps", result.steps},
                 {"prompt_tokens", result.prompt_tokens},
                 {"tokens", result.tokens},
                 {"seconds", result.seconds},
                 {"tokens_per_second", static_cast<double>(result.tokens) / result.seconds},
                 {"moe_layers", result.moe_layers},
                 {"par_per_layer", result.par_per_layer},
                 {"rank_load", result.rank_load}};
  if (result.eplb) report["eplb"] = eplb_json(*result.eplb);
  report["outputs"] = std::move(outputs);
  return report.dump(1) + "\n";
}

}  // namespace trimtab::cli
