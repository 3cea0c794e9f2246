// SPDX-License-Identifier: Apache-2.0
// Helps the tests of the readers: values to write, and checks of refusals.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "files/testing.h"
#include "trimtab/error.h"
#include "trimtab/recordings.h"

namespace trimtab {

inline const std::string kFixtures = std::string(TRIMTAB_SOURCE_DIR) + "/tests/fixtures/formats/";

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline Recording parse_loads(std::string_view text, FileFormat format,
                             RecordingOptions options = {}) {
  options.format = format;
  return parse_recording(bytes_of(text), "some", options);
}

inline PlacementFile parse_some_placement(std::string_view text, FileFormat format,
                                          PlacementOptions options = {.num_ranks = 2}) {
  options.format = format;
  return parse_placement(bytes_of(text), "some", options);
}

// The call is refused with an E whose text has the part; a FormatError also with the offset, -1:
// not checked.
template <class E>
void expect_refused(const std::function<void()>& call, const std::string& part,
                    int64_t offset = -1) {
  try {
    call();
    ADD_FAILURE() << "accepted; should say " << part;
  } catch (const E& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << error.what() << "\n lacks " << part;
    if constexpr (std::is_same_v<E, FormatError>) {
      if (offset >= 0) {
        EXPECT_EQ(error.offset(), offset) << error.what();
      }
    }
  }
}

inline void expect_loads_refused(FileFormat format, std::string_view text, const std::string& part,
                                 int64_t offset = -1) {
  SCOPED_TRACE(text);
  expect_refused<FormatError>([&] { parse_loads(text, format); }, part, offset);
}

inline void expect_placement_refused(FileFormat format, std::string_view text,
                                     const std::string& part, int64_t offset = -1) {
  SCOPED_TRACE(text);
  expect_refused<FormatError>([&] { parse_some_placement(text, format); }, part, offset);
}

// [steps, layers, experts]
inline std::vector<int64_t> shape(const Recording& recording) {
  return {recording.load.num_steps, recording.load.num_layers, recording.load.num_experts};
}

using SlotRows = std::vector<std::vector<int32_t>>;
inline const SlotRows kRows = {{0, 1, 2, 3, 0, 1}, {3, 2, 0, 1, 0, 3}};

inline PlacementFile some_placement(std::vector<int> slots = {3, 3}) {
  std::vector<int32_t> logical = kRows[0];
  logical.insert(logical.end(), kRows[1].begin(), kRows[1].end());
  return {Placement(2, 4, std::move(slots), std::move(logical)), {3, 4}, {{"policy", "trim"}}};
}

inline SlotRows rows(const Placement& placement) {
  SlotRows all;
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    const auto row = placement.logical(layer);
    all.emplace_back(row.begin(), row.end());
  }
  return all;
}

// 100 step + 10 layer + expert, as the fixtures.
inline std::vector<int64_t> fixture_counts(int steps) {
  std::vector<int64_t> counts;
  for (int s = 0; s < steps; ++s) {
    for (int l = 0; l < 2; ++l) {
      for (int e = 0; e < 4; ++e) counts.push_back(100 * s + 10 * l + e);
    }
  }
  return counts;
}

inline Recording some_recording(int64_t steps = 2) {
  Recording recording;
  recording.load = {steps, 2, 4, fixture_counts(static_cast<int>(steps))};
  recording.layer_ids = {3, 5};
  for (int64_t s = 0; s < steps; ++s) recording.step_ids.push_back(50 + 2 * s);
  recording.metadata = {{"model", "a \"quoted\"\n\\ name"}, {"num_experts_per_token", "2"}};
  recording.file = "some";
  return recording;
}

}  // namespace trimtab
