// SPDX-License-Identifier: Apache-2.0
#include "trimtab/metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "trimtab/error.h"

namespace trimtab {
namespace {

struct Exposition {
  std::map<std::string, std::string> types;
  std::map<std::string, std::string> samples;  // name with labels -> value
};

// A strict reader of the format: every line is a HELP, a TYPE or a sample; HELP and TYPE come once,
// right before the samples of their metric; counters end in _total and do not fall below 0.
Exposition parse(const std::string& text) {
  static const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) \S[^\n\\]*)");
  static const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge)");
  static const std::regex sample(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)((?:\{[a-z_]+="[^"\\\n]*"(?:,[a-z_]+="[^"\\\n]*")*\})?) )re"
      R"re((NaN|[+-]Inf|-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?))re");
  Exposition result;
  std::string current;
  bool typed = false;
  EXPECT_TRUE(text.ends_with('\n'));
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      current = match[1];
      typed = false;
      EXPECT_FALSE(result.types.contains(current)) << line;
    } else if (std::regex_match(line, match, type)) {
      EXPECT_EQ(match[1], current) << line;
      EXPECT_FALSE(typed) << line;
      typed = true;
      result.types[current] = match[2];
      EXPECT_EQ(match[2] == "counter", current.ends_with("_total")) << line;
    } else if (std::regex_match(line, match, sample)) {
      EXPECT_EQ(match[1], current) << line;
      EXPECT_TRUE(typed) << line;
      EXPECT_TRUE(result.samples.emplace(match[1].str() + match[2].str(), match[3]).second) << line;
      EXPECT_FALSE(result.types[current] == "counter" && match[3].str()[0] == '-') << line;
    } else {
      ADD_FAILURE() << "no line of the format: " << line;
    }
  }
  return result;
}

BalanceMetrics some_metrics() {
  BalanceMetrics m;
  m.split = "time";
  m.policy = "trim";
  m.par_rows = 1.25;
  m.par_time = 1.5;
  m.balancedness_mean = 0.1;
  m.balancedness_min = 1.0 / 3;
  m.rebalances = 2;
  m.plan_seconds = 1e-7;
  m.stall_seconds = 0.25;
  m.moves = 5;
  m.moved_bytes = int64_t{1} << 53;
  m.predicted_gain = 0.5;
  m.realised_gain = -0.25;
  m.rolled_back_layers = 3;
  m.plans_failed = 6;
  m.plans_late = 7;
  m.plans_rejected = 8;
  m.rank_tokens = {10, 0, 12};
  m.rank_speeds = {1000, 500};
  return m;
}

TEST(Metrics, EveryNumberHasItsSeries) {
  const Exposition text = parse(prometheus_text(some_metrics()));
  const std::map<std::string, std::string> wanted = {
      {"trimtab_balancing_info{split=\"time\",policy=\"trim\"}", "1"},
      {"trimtab_par_rows", "1.25"},
      {"trimtab_par_time", "1.5"},
      {"trimtab_balancedness{stat=\"min\"}", "0.3333333333333333"},
      {"trimtab_balancedness{stat=\"mean\"}", "0.1"},
      {"trimtab_rebalances_total", "2"},
      {"trimtab_plan_seconds_total", "1e-07"},
      {"trimtab_stall_seconds_total", "0.25"},
      {"trimtab_moves_total", "5"},
      {"trimtab_moved_bytes_total", "9007199254740992"},
      {"trimtab_predicted_gain", "0.5"},
      {"trimtab_realised_gain", "-0.25"},
      {"trimtab_rolled_back_layers_total", "3"},
      {"trimtab_plans_failed_total", "6"},
      {"trimtab_plans_late_total", "7"},
      {"trimtab_plans_rejected_total", "8"},
      {"trimtab_rank_speed{rank=\"0\"}", "1"},
      {"trimtab_rank_speed{rank=\"1\"}", "0.5"},
      {"trimtab_tokens_total{rank=\"0\"}", "10"},
      {"trimtab_tokens_total{rank=\"1\"}", "0"},
      {"trimtab_tokens_total{rank=\"2\"}", "12"},
  };
  EXPECT_EQ(text.samples, wanted);
  EXPECT_EQ(text.types.size(), 17U);
  BalanceMetrics in_rows = some_metrics();
  in_rows.par_time.reset();
  in_rows.rank_speeds.clear();
  const Exposition rows = parse(prometheus_text(in_rows));
  EXPECT_EQ(rows.types.size(), 15U);
  EXPECT_FALSE(rows.samples.contains("trimtab_par_time"));
}

TEST(Metrics, WhatIsNoNumberHasTheFormatsName) {
  BalanceMetrics m;
  m.realised_gain = std::numeric_limits<double>::quiet_NaN();
  m.predicted_gain = -std::numeric_limits<double>::infinity();
  const Exposition text = parse(prometheus_text(m));
  EXPECT_EQ(text.samples.at("trimtab_realised_gain"), "NaN");
  EXPECT_EQ(text.samples.at("trimtab_predicted_gain"), "-Inf");
}

TEST(Metrics, AFileIsReplacedAsAWhole) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("trimtab_metrics_test_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string file = (folder / "trimtab.prom").string();
  write_metrics(file, {});
  write_metrics(file, some_metrics());
  std::ifstream in(file, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), prometheus_text(some_metrics()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(write_metrics(file, {}), Error);
}

TEST(BalanceEvent, EveryKindHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int kind = 0; kind <= static_cast<int>(BalanceEvent::Kind::kCommitted); ++kind) {
    names.insert(name(static_cast<BalanceEvent::Kind>(kind)));
  }
  EXPECT_EQ(names.size(), 9U);
  EXPECT_FALSE(names.contains(""));
}

}  // namespace
}  // namespace trimtab
