// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "trimtab/balancer.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

BalancerConfig parse(const std::string& text) {
  return parse_balancer_config(text, "eplb.json");
}

std::string refusal(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// E7: settings: how often, which policy, limits, where to record; unknown ones refused with the
//     nearest name.
TEST(BalancerConfig, ReadsEveryKey) {
  const BalancerConfig c =
      parse(R"({"screen": true, "interval": 7, "warmup_steps": 3, "phase": "decode",
    "max_episodes": 5, "plan_above_par": 1.5, "policy": "trim", "policy_preset": "deep",
    "move_price": 0.25,
    "time_budget_seconds": 0.5, "max_moves_per_layer": 2, "max_bytes": 1000, "max_layers": 4,
    "use_async": false, "plan_deadline_seconds": 2.5, "plan_deadline_steps": 11,
    "split": "round_robin",
    "gate": false, "expected_life_windows": 3, "expert_share": 0.75, "screen_gain": 0.125,
    "measure_speeds": false,
    "layers_in_flight": 3, "steps_per_layer": 6, "spares": 12})");
  EXPECT_TRUE(c.screen);
  EXPECT_EQ(c.interval, 7);
  EXPECT_EQ(c.warmup_steps, 3);
  EXPECT_EQ(c.phase, Phase::kDecode);
  EXPECT_EQ(c.max_episodes, 5);
  EXPECT_EQ(c.plan_above_par, 1.5);
  EXPECT_EQ(c.policy, "trim");
  EXPECT_EQ(c.policy_options.preset, "deep");
  EXPECT_EQ(c.policy_options.move_price, 0.25);
  EXPECT_EQ(c.policy_options.time_budget_s, 0.5);
  EXPECT_EQ(c.limits.max_moves_per_layer, 2);
  EXPECT_EQ(c.limits.max_bytes, 1000);
  EXPECT_EQ(c.limits.max_layers, 4);
  EXPECT_FALSE(c.use_async);
  EXPECT_EQ(c.plan_deadline_seconds, 2.5);
  EXPECT_EQ(c.plan_deadline_steps, 11);
  EXPECT_EQ(c.split, SplitRule::kRoundRobin);
  EXPECT_FALSE(c.gate);
  EXPECT_EQ(c.expected_life_windows, 3);
  EXPECT_EQ(c.expert_share, 0.75);
  EXPECT_EQ(c.screen_gain, 0.125);
  EXPECT_FALSE(c.measure_speeds);
  EXPECT_EQ(c.layers_in_flight, 3);
  EXPECT_EQ(c.steps_per_layer, 6);
  EXPECT_EQ(c.spares, 12);
}

TEST(BalancerConfig, OptionsAreThoseOfThePolicy) {
  const BalancerConfig c = parse(R"({"policy": "random", "seed": 9})");
  EXPECT_EQ(c.policy, "random");
  EXPECT_EQ(c.policy_options.seed, 9U);
  EXPECT_EQ(refusal(R"({"policy": "swift", "move_price": 1})"),
            "move_price: only trim has it, and the policy is swift");
  EXPECT_EQ(refusal(R"({"policy": "swift", "policy_preset": "deep"})"),
            "preset: only trim has it, and the policy is swift");
  // What a preset chose for trim is no option that was given.
  EXPECT_EQ(parse(R"({"preset": "short", "policy": "swift"})").policy_options.preset, "");
}

TEST(BalancerConfig, KeysChangeAPreset) {
  EXPECT_EQ(parse("{}").interval, BalancerConfig().interval);
  EXPECT_EQ(parse(R"({"preset": "short"})").interval, 32);
  const BalancerConfig c = parse(R"({"interval": 5, "preset": "short"})");  // in any order
  EXPECT_EQ(c.interval, 5);
  EXPECT_EQ(c.policy_options.preset, "fast");
  EXPECT_EQ(parse(R"({"phase": "all"})").phase, std::nullopt);
  const auto rule_with_cost = [](const char* text) {
    return parse_balancer_config(text, "eplb.json", true).split;
  };
  EXPECT_EQ(rule_with_cost(R"({"preset": "short"})"), SplitRule::kTime);
  EXPECT_EQ(rule_with_cost(R"({"preset": "short", "split": "split"})"), SplitRule::kSplit);
}

TEST(BalancerConfig, RefusesWhatItDoesNotKnowWithTheNearestName) {
  EXPECT_EQ(refusal(R"({"intervall": 3})"),
            "eplb.json: there is no setting \"intervall\" (did you mean \"interval\"?)");
  EXPECT_EQ(refusal(R"({"temperature": 3})"), "eplb.json: there is no setting \"temperature\"");
  EXPECT_EQ(refusal(R"({"preset": "fast"})"),
            "eplb.json: preset must be default, short or steady, not \"fast\"");
  EXPECT_NE(refusal(R"({"policy": "best"})").find("trim"), std::string::npos);
  EXPECT_NE(refusal(R"({"split": "half"})").find("round_robin"), std::string::npos);
}

TEST(BalancerConfig, RefusesImpossibleValues) {
  EXPECT_EQ(refusal(R"({"interval": 0})"), "interval must be at least 1, not 0");
  EXPECT_EQ(refusal(R"({"interval": 1.5})"), "eplb.json: interval must be a whole number, not 1.5");
  EXPECT_EQ(refusal(R"({"interval": "1"})"),
            "eplb.json: interval must be a whole number, not \"1\"");
  EXPECT_NE(refusal(R"({"interval": 18446744073709551615})"), "");
  EXPECT_NE(refusal(R"({"plan_above_par": -0.5})"), "");
  EXPECT_NE(refusal(R"({"expert_share": 1.5})"), "");
  EXPECT_NE(refusal(R"({"max_bytes": -1})"), "");
  EXPECT_NE(refusal(R"({"spares": -1})"), "");
  EXPECT_NE(refusal(R"({"layers_in_flight": 0})"), "");
  EXPECT_NE(refusal(R"({"steps_per_layer": 0})"), "");
  EXPECT_NE(refusal(R"({"gate": 1})"), "");
  EXPECT_NE(refusal(R"({"seed": -1})"), "");
  EXPECT_NE(refusal(R"({"move_price": -1})"), "");
  EXPECT_THROW(parse("[]"), FormatError);
  EXPECT_THROW(parse("{"), FormatError);
  BalancerConfig nan;
  nan.expected_life_windows = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(check_balancer_config(nan), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
