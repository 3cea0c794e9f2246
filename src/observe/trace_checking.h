// SPDX-License-Identifier: Apache-2.0
// Checks, for tests, that a text is a trace as the Trace Event Format and Perfetto's importer want
// it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/trace_nesting.h"

namespace trimtab {

struct CheckedTrace {
  using Track = std::pair<int, int>;  // process, thread
  std::map<int, std::string> processes;
  std::map<Track, std::string> threads;
  std::map<Track, std::map<std::string, int64_t>> slices;  // how many of each name
  std::map<int, std::map<std::string, int64_t>> counters;  // sum of the values of each name
  int64_t flows = 0;
  nlohmann::json events;
};

inline int64_t ns(const nlohmann::json& us) {
  return std::llround(us.get<double>() * 1000);
}

// Every event has the fields of its kind, times from 0 on; slices nest; flows have both ends, the
// start first, each inside a slice; every process and thread has a name, once.
inline CheckedTrace check_trace(const std::string& text) {
  const nlohmann::json trace = nlohmann::json::parse(text);
  CheckedTrace result;
  result.events = trace.at("traceEvents");
  std::map<CheckedTrace::Track, std::vector<std::pair<int64_t, int64_t>>> slices;
  struct End {
    CheckedTrace::Track track;
    int64_t time;
  };
  std::map<std::pair<std::string, std::string>, End> starts, ends;  // by name and id
  for (const nlohmann::json& event : result.events) {
    const std::string kind = event.at("ph"), name = event.at("name");
    const int process = event.at("pid");
    const CheckedTrace::Track track{process, event.at("tid").get<int>()};
    EXPECT_FALSE(name.empty()) << event;
    EXPECT_EQ(event.size(), kind == "X"   ? 7U
                            : kind == "C" ? 6U
                            : kind == "M" ? 5U
                            : kind == "s" ? 7U
                                          : 8U)
        << event;
    if (kind == "M") {
      if (name == "process_name") {
        const std::string& given =
            result.processes.emplace(process, event.at("args").at("name")).first->second;
        EXPECT_EQ(given, event.at("args").at("name"));
      } else if (name == "thread_name") {
        EXPECT_TRUE(result.threads.emplace(track, event.at("args").at("name")).second) << event;
      } else {
        EXPECT_EQ(name, "process_sort_index");
      }
      continue;
    }
    const int64_t time = ns(event.at("ts"));
    EXPECT_GE(time, 0) << event;
    if (kind == "X") {
      EXPECT_GE(ns(event.at("dur")), 0) << event;
      slices[track].emplace_back(time, time + ns(event.at("dur")));
      ++result.slices[track][name];
      for (const auto& arg : event.at("args").items())
        EXPECT_TRUE(arg.value().is_number_integer()) << event;
    } else if (kind == "C") {
      EXPECT_EQ(event.at("args").size(), 1U) << event;
      result.counters[process][name] += event.at("args").at(name).get<int64_t>();
    } else if (kind == "s" || kind == "f") {
      EXPECT_TRUE(event.at("cat").is_string()) << event;
      EXPECT_TRUE(kind == "s" || event.at("bp") == "e") << event;
      EXPECT_TRUE((kind == "s" ? starts : ends)
                      .try_emplace({name, event.at("id")}, End{track, time})
                      .second)
          << event;
    } else {
      ADD_FAILURE() << "what is " << event;
    }
  }
  for (const auto& [track, all] : slices) {
    EXPECT_TRUE(slices_nest(all)) << "rank " << track.first << ", thread " << track.second;
    EXPECT_TRUE(result.processes.contains(track.first));
    EXPECT_TRUE(result.threads.contains(track));
  }
  const auto inside_a_slice = [&](const End& end) {
    const auto& all = slices[end.track];
    return std::any_of(all.begin(), all.end(),
                       [&](auto one) { return one.first <= end.time && end.time <= one.second; });
  };
  EXPECT_EQ(starts.size(), ends.size());
  for (const auto& [key, start] : starts) {
    EXPECT_TRUE(inside_a_slice(start)) << key.first;
    const auto end = ends.find(key);
    if (end == ends.end()) {
      ADD_FAILURE() << "a flow without end: " << key.first << " " << key.second;
      continue;
    }
    EXPECT_TRUE(inside_a_slice(end->second)) << key.first;
    EXPECT_LE(start.time, end->second.time) << key.first;
  }
  result.flows = std::ssize(starts);
  return result;
}

}  // namespace trimtab
