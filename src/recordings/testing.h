// SPDX-License-Identifier: Apache-2.0
// What the tests of the readers share.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

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

inline PlacementFile parse_map(std::string_view text, FileFormat format,
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

inline void expect_map_refused(FileFormat format, std::string_view text, const std::string& part,
                               int64_t offset = -1) {
  SCOPED_TRACE(text);
  expect_refused<FormatError>([&] { parse_map(text, format); }, part, offset);
}

// [steps, layers, experts]
inline std::vector<int64_t> shape(const Recording& recording) {
  return {recording.load.num_steps, recording.load.num_layers, recording.load.num_experts};
}

inline std::vector<std::vector<int32_t>> rows(const Placement& placement) {
  std::vector<std::vector<int32_t>> all;
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    const auto row = placement.logical(layer);
    all.emplace_back(row.begin(), row.end());
  }
  return all;
}

}  // namespace trimtab
