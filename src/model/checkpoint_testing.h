// SPDX-License-Identifier: Apache-2.0
// The fixture checkpoints, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "files/testing.h"
#include "trimtab/checkpoint.h"

namespace trimtab {

// The checkpoints of tools/make_fixtures.py: those of the repository, or the folder that
// TRIMTAB_CHECKPOINTS names.
inline std::vector<std::string> fixture_checkpoints() {
  const char* chosen = std::getenv("TRIMTAB_CHECKPOINTS");
  const std::filesystem::path folder =
      chosen ? chosen : TRIMTAB_SOURCE_DIR "/tests/fixtures/checkpoints";
  std::vector<std::string> checkpoints;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_directory()) checkpoints.push_back(entry.path().string());
  }
  std::ranges::sort(checkpoints);
  return checkpoints;
}

// A test of one of them.
class FixtureTest : public testing::TestWithParam<std::string> {
 public:
  static std::string name(const testing::TestParamInfo<std::string>& tested) {
    return std::filesystem::path(tested.param).filename().string();
  }

 protected:
  FixtureTest()
      : config(read_model_config(GetParam())),
        tensors(SafeTensors::open(GetParam())),
        expected(SafeTensors::open(GetParam() + "/expected.safetensors")) {}

  const ModelConfig config;
  const SafeTensors tensors, expected;  // expected: what transformers computed
};

}  // namespace trimtab
