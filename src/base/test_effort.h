// SPDX-License-Identifier: Apache-2.0
// How much a test tries: tests of every dispatcher with every layout and format have thousands of
// cases, and run with threads, with processes, over hosts and under two sanitizers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace trimtab {

// Are the modules under test compiled with a sanitizer? Tests themselves may not be.
#ifdef TRIMTAB_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// TRIMTAB_HEAVY=1, as in ./test.sh --heavy: everything is tried.
inline bool heavy_tests() {
  const char* text = std::getenv("TRIMTAB_HEAVY");
  return text != nullptr && std::string_view(text) == "1";
}

// Are a few of many cases enough? Sanitizers make them 10 to 20 times as slow.
inline bool few_cases() {
  return kSanitized && !heavy_tests();
}

// Is the test that runs one of the sample, about one in `every`? Names decide, so that all ranks
// agree, each value of each parameter is in the sample, and a run can be repeated.
inline bool in_sample(uint32_t every) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  uint32_t hash = 2166136261U;  // FNV-1a
  for (const char letter : std::string_view(test.name()))
    hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return (hash >> 8) % every == 0;
}

}  // namespace trimtab

// At the beginning of a test: under a sanitizer only about one case in `every` runs.
#define TRIMTAB_SAMPLED_UNDER_SANITIZERS(every)           \
  if (trimtab::few_cases() && !trimtab::in_sample(every)) \
  GTEST_SKIP() << "one case in " << (every) << " runs here, and all with TRIMTAB_HEAVY=1"
