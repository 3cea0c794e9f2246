// SPDX-License-Identifier: Apache-2.0
#include "trimtab/weight_format.h"

#include <gtest/gtest.h>

#include "trimtab/error.h"

namespace trimtab {
namespace {

TEST(WeightFormat, NamesAreReadBack) {
  for (std::string each : weight_format_names()) {
    if (each.ends_with("-gN")) each.replace(each.size() - 1, 1, "64");
    const WeightFormat format = parse_weight_format(each);
    EXPECT_EQ(parse_weight_format(name(format)), format) << each;
    EXPECT_EQ(format.has_groups(), each.starts_with("w4a") || each.starts_with("w8a16")) << each;
  }
  EXPECT_EQ(parse_weight_format("w4a16"), WeightFormat(Scheme::kW4A16, 128));
  EXPECT_EQ(parse_weight_format("w4a16-g128"), WeightFormat(Scheme::kW4A16, 128));
  EXPECT_EQ(parse_weight_format("w8a16-channel"), WeightFormat(Scheme::kW8A16, 0));
  EXPECT_EQ(name({Scheme::kW8A16, 0}), "w8a16");
  EXPECT_EQ(name({Scheme::kW8A16, 128}), "w8a16-g128");
  EXPECT_EQ(name({Scheme::kW4A16, 0}), "w4a16-channel");
}

TEST(WeightFormat, OtherNamesAreRefusedWithTheList) {
  for (const char* text : {"", "w4", "w8a8-g32", "bf16-channel", "w4a16-g", "w4a16-g12", "w4a16-g0",
                           "w4a16-g-8", "w4a16-g32x", "w4a160", "w8a16-gN", "mxfp16"}) {
    try {
      parse_weight_format(text);
      ADD_FAILURE() << text;
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("f32, bf16, "), std::string::npos) << message;
      EXPECT_NE(message.find("w4a16-gN, w4a16-channel, w8a16, "), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace trimtab
