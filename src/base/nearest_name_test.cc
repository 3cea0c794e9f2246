// SPDX-License-Identifier: Apache-2.0
#include "base/nearest_name.h"

#include <gtest/gtest.h>

namespace trimtab {
namespace {

constexpr std::string_view kNames[] = {"interval", "policy", "max_moves_per_layer", "max_layers"};

TEST(NearestName, FindsWhatWasMeant) {
  EXPECT_EQ(nearest_name("intervall", kNames), "interval");
  EXPECT_EQ(nearest_name("polciy", kNames), "policy");  // two letters swapped are one change
  EXPECT_EQ(nearest_name("max_layer", kNames), "max_layers");
  EXPECT_EQ(nearest_name("max_moves_layer", kNames), "max_moves_per_layer");
  EXPECT_EQ(did_you_mean("polizy", kNames), " (did you mean \"policy\"?)");
}

TEST(NearestName, SaysNothingWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("temperature", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(did_you_mean("x", kNames), "");
  EXPECT_EQ(nearest_name("interval", {}), "");
}

}  // namespace
}  // namespace trimtab
