// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/nearest_name.h"
#include "files/json.h"
#include "trimtab/balancer.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using nlohmann::json;

// One value of the object, for errors.
struct Value {
  const std::string& file;
  const std::string& key;
  const json& value;

  [[noreturn]] void refuse(const char* wanted) const {
    throw InvalidArgument(cat(file, ": ", key, " must be ", wanted, ", not ", value.dump()));
  }
  int64_t integer() const {
    if (!value.is_number_integer()) refuse("a whole number");
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
      refuse("below 2^63");
    return value.get<int64_t>();
  }
  double number() const {
    if (!value.is_number()) refuse("a number");
    return value.get<double>();
  }
  bool boolean() const {
    if (!value.is_boolean()) refuse("true or false");
    return value.get<bool>();
  }
  std::string text() const {
    if (!value.is_string()) refuse("a string");
    return value.get<std::string>();
  }
};

struct Key {
  std::string_view name;
  void (*set)(BalancerConfig& config, const Value& value);
};

constexpr Key kKeys[] = {
    {"screen", [](BalancerConfig& c, const Value& v) { c.screen = v.boolean(); }},
    {"interval", [](BalancerConfig& c, const Value& v) { c.interval = v.integer(); }},
    {"warmup_steps", [](BalancerConfig& c, const Value& v) { c.warmup_steps = v.integer(); }},
    {"phase",
     [](BalancerConfig& c, const Value& v) {
       const std::string phase = v.text();
       if (phase != "all" && phase != "prefill" && phase != "decode")
         v.refuse("all, prefill or decode");
       c.phase.reset();
       if (phase != "all") c.phase = phase == "prefill" ? Phase::kPrefill : Phase::kDecode;
     }},
    {"max_episodes", [](BalancerConfig& c, const Value& v) { c.max_episodes = v.integer(); }},
    {"plan_above_par", [](BalancerConfig& c, const Value& v) { c.plan_above_par = v.number(); }},
    {"policy", [](BalancerConfig& c, const Value& v) { c.policy = v.text(); }},
    {"policy_preset",
     [](BalancerConfig& c, const Value& v) { c.policy_options.preset = v.text(); }},
    {"move_price",
     [](BalancerConfig& c, const Value& v) { c.policy_options.move_price = v.number(); }},
    {"time_budget_seconds",
     [](BalancerConfig& c, const Value& v) { c.policy_options.time_budget_s = v.number(); }},
    {"seed",
     [](BalancerConfig& c, const Value& v) {
       if (v.integer() < 0) v.refuse("0 or more");
       c.policy_options.seed = static_cast<uint64_t>(v.integer());
     }},
    {"max_moves_per_layer",
     [](BalancerConfig& c, const Value& v) { c.limits.max_moves_per_layer = v.integer(); }},
    {"max_bytes", [](BalancerConfig& c, const Value& v) { c.limits.max_bytes = v.integer(); }},
    {"max_layers", [](BalancerConfig& c, const Value& v) { c.limits.max_layers = v.integer(); }},
    {"use_async", [](BalancerConfig& c, const Value& v) { c.use_async = v.boolean(); }},
    {"plan_deadline_seconds",
     [](BalancerConfig& c, const Value& v) { c.plan_deadline_seconds = v.number(); }},
    {"plan_deadline_steps",
     [](BalancerConfig& c, const Value& v) { c.plan_deadline_steps = v.integer(); }},
    {"split", [](BalancerConfig& c, const Value& v) { c.split = parse_split_rule(v.text()); }},
    {"gate", [](BalancerConfig& c, const Value& v) { c.gate = v.boolean(); }},
    {"expected_life_windows",
     [](BalancerConfig& c, const Value& v) { c.expected_life_windows = v.number(); }},
    {"expert_share", [](BalancerConfig& c, const Value& v) { c.expert_share = v.number(); }},
    {"measure_speeds", [](BalancerConfig& c, const Value& v) { c.measure_speeds = v.boolean(); }},
    {"screen_gain", [](BalancerConfig& c, const Value& v) { c.screen_gain = v.number(); }},
    {"layers_in_flight",
     [](BalancerConfig& c, const Value& v) { c.layers_in_flight = v.integer(); }},
    {"steps_per_layer", [](BalancerConfig& c, const Value& v) { c.steps_per_layer = v.integer(); }},
    {"spares",
     [](BalancerConfig& c, const Value& v) {
       c.spares = static_cast<int>(std::clamp<int64_t>(v.integer(), INT32_MIN, INT32_MAX));
     }},
};

BalancerConfig preset(const Value& value) {
  BalancerConfig config;
  const std::string name = value.text();
  if (name == "short") {
    config.interval = 32;
    config.max_episodes = 32;
    config.policy_options.preset = "fast";
  } else if (name == "steady") {
    config.interval = 2048;
    config.max_episodes = 128;
    config.policy_options.preset = "deep";
  } else if (name != "default") {
    value.refuse("default, short or steady");
  }
  return config;
}

}  // namespace

BalancerConfig parse_balancer_config(std::string_view text, const std::string& file,
                                     bool has_cost) {
  const json object = parse_json(text, file);
  if (!object.is_object()) throw FormatError(file, 0, "a balancer configuration is a JSON object");
  BalancerConfig config;
  if (object.contains("preset")) config = preset({file, "preset", object["preset"]});
  if (has_cost) config.split = SplitRule::kTime;
  for (const auto& [key, value] : object.items()) {
    if (key == "preset") continue;
    const auto* const found = std::ranges::find(kKeys, key, &Key::name);
    if (found == std::end(kKeys)) {
      std::vector<std::string_view> names = {"preset"};
      for (const Key& known : kKeys) names.push_back(known.name);
      throw InvalidArgument(
          cat(file, ": there is no setting \"", key, "\"", did_you_mean(key, names)));
    }
    found->set(config, {file, key, value});
  }
  // The effort that `preset` chose is trim's: another policy goes without.
  if (config.policy != "trim" && !object.contains("policy_preset"))
    config.policy_options.preset.clear();
  check_balancer_config(config);
  return config;
}

int num_spares(const BalancerConfig& config, const Placement& placement) {
  constexpr int kMost = 8;
  if (config.spares > 0) return config.spares;
  int slots = 0;
  for (int r = 0; r < placement.num_ranks(); ++r)
    slots = std::max(slots, placement.slots_of_rank(r));
  return std::min(slots, kMost);
}

void check_balancer_config(const BalancerConfig& c) {
  const auto at_least = [](std::string_view key, auto value, auto least) {
    if (!(value >= least))
      throw InvalidArgument(cat(key, " must be at least ", least, ", not ", value));
  };
  const auto finite = [&](std::string_view key, double value, double least) {
    if (!std::isfinite(value)) throw InvalidArgument(cat(key, " must be finite, not ", value));
    at_least(key, value, least);
  };
  at_least("interval", c.interval, 1);
  at_least("warmup_steps", c.warmup_steps, 0);
  at_least("max_episodes", c.max_episodes, 1);
  finite("plan_above_par", c.plan_above_par, 0.0);
  at_least("max_moves_per_layer", c.limits.max_moves_per_layer, 0);
  at_least("max_bytes", c.limits.max_bytes, 0);
  at_least("max_layers", c.limits.max_layers, 0);
  finite("plan_deadline_seconds", c.plan_deadline_seconds, 0.0);
  at_least("plan_deadline_steps", c.plan_deadline_steps, 0);
  finite("expected_life_windows", c.expected_life_windows, 0.0);
  finite("expert_share", c.expert_share, 0.0);
  if (c.expert_share > 1)
    throw InvalidArgument(cat("expert_share must be at most 1, not ", c.expert_share));
  finite("screen_gain", c.screen_gain, 0.0);
  at_least("layers_in_flight", c.layers_in_flight, 1);
  at_least("steps_per_layer", c.steps_per_layer, 1);
  at_least("spares", c.spares, 0);
  make_policy(c.policy, c.policy_options);  // throws for what it does not know
}

}  // namespace trimtab
