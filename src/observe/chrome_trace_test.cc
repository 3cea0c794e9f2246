// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "observe/trace_checking.h"
#include "trimtab/error.h"
#include "trimtab/trace.h"

namespace trimtab {
namespace {

using Json = nlohmann::json;

// Rank 1 sends expert weights to rank 0 under its steps.
struct Example {
  TraceBuffer steps{16}, sends{16}, receives{16};
  int64_t origin = TraceBuffer::now();

  Example() {
    TraceSteps outer(&steps), inner(&steps, 5);
    inner.step("route");
    inner.step("experts", {"rows", 12});
    inner.counter("expert rows", 12);
    outer.step("step", {"tokens", 3});
    const int64_t send = TraceBuffer::now();
    sends.flow_start("migrate", send, std::numeric_limits<int64_t>::max());
    sends.slice("send", send, 5, {"bytes", int64_t{1} << 40});
    const int64_t receive = TraceBuffer::now();
    receives.flow_end("migrate", receive, std::numeric_limits<int64_t>::max());
    receives.slice("receive", receive, 5);
  }

  std::vector<TraceTrack> tracks() const {
    return {{0, 0, "steps", &steps}, {0, 1, "migration", &receives}, {1, 1, "migration", &sends}};
  }
};

TEST(ChromeTrace, HasEveryEventInTheFormat) {
  const Example example;
  const CheckedTrace trace =
      check_trace(chrome_trace(std::vector{chrome_trace_events(example.tracks(), 0)}));
  EXPECT_EQ(trace.processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  EXPECT_EQ(trace.threads.size(), 3U);
  EXPECT_EQ(trace.threads.at({1, 1}), "migration");
  EXPECT_EQ(trace.slices.at({0, 0}),
            (std::map<std::string, int64_t>{{"experts", 1}, {"route", 1}, {"step", 1}}));
  EXPECT_EQ(trace.counters.at(0).at("expert rows"), 12);
  EXPECT_EQ(trace.flows, 1);
  for (const Json& event : trace.events) {
    const std::string name = event.at("name");
    if (name == "experts") {
      EXPECT_EQ(event.at("args"), Json({{"moe_layer", 5}, {"rows", 12}}));
    } else if (name == "step") {
      EXPECT_EQ(event.at("args"), Json({{"tokens", 3}}));
    } else if (name == "migrate") {
      EXPECT_EQ(event.at("id"), "9223372036854775807");
    }
  }
}

TEST(ChromeTrace, TimesAreExactMicrosecondsFromTheOrigin) {
  TraceBuffer buffer(4);
  buffer.counter("c", 1'000'000'000'000'005, 1);
  buffer.counter("c", 1'000'000'001'234'567, 2);
  buffer.counter("c", 999'999'999'999'500, 3);
  const std::vector<TraceTrack> tracks = {{0, 0, "x", &buffer}};
  const std::string text = chrome_trace_events(tracks, 1'000'000'000'000'000);
  EXPECT_NE(text.find(R"("ts":0.005,"args":{"c":1})"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("ts":1234.567,"args":{"c":2})"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("ts":-0.500,"args":{"c":3})"), std::string::npos) << text;
}

TEST(ChromeTrace, SaysWhatWasOverwrittenAndEscapesNames) {
  TraceBuffer buffer(2);
  for (int i = 0; i < 5; ++i) buffer.slice("a\"b\\\x01", TraceBuffer::now());
  const std::vector<TraceTrack> tracks = {{3, 2, "x\ny", &buffer}};
  const CheckedTrace trace = check_trace(chrome_trace(std::vector{chrome_trace_events(tracks, 0)}));
  EXPECT_EQ(trace.threads.at({3, 2}), "x\ny (without the first 3 events)");
  EXPECT_EQ(trace.slices.at({3, 2}).at("a\"b\\\x01"), 2);
}

TEST(ChromeTrace, ListsOfSeveralProcessesMakeOneFile) {
  const Example example;
  const std::vector<TraceTrack> tracks = example.tracks();
  const auto events_of = [&](size_t i) {
    return chrome_trace_events(std::span(tracks).subspan(i, 1), 0);
  };
  const Json all = Json::parse(chrome_trace(std::vector{chrome_trace_events(tracks, 0)}));
  const Json parts = Json::parse(
      chrome_trace(std::vector<std::string>{events_of(0), "", events_of(1), events_of(2)}));
  EXPECT_EQ(parts, all);
  EXPECT_EQ(Json::parse(chrome_trace(std::vector<std::string>{"", ""})).at("traceEvents"),
            Json::array());
}

TEST(ChromeTrace, AFileBeginsAtItsFirstEvent) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("trimtab_trace_test_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string file = (folder / "trace.json").string();
  const Example example;
  write_chrome_trace(file, example.tracks());
  std::ifstream in(file, std::ios::binary);
  const CheckedTrace trace = check_trace({std::istreambuf_iterator<char>(in), {}});
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const Json& event : trace.events) {
    if (event.contains("ts")) first = std::min(first, ns(event.at("ts")));
  }
  EXPECT_EQ(first, 0);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(write_chrome_trace(file, example.tracks()), Error);
}

}  // namespace
}  // namespace trimtab
