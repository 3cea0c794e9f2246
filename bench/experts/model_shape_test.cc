// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/model_shape.h"

#include <gtest/gtest.h>

#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

TEST(ModelShape, ModelsByNameAndMatricesBySize) {
  const Shape model = parse_shape("deepseek-v3");
  ASSERT_TRUE(std::holds_alternative<ModelShape>(model));
  EXPECT_EQ(std::get<ModelShape>(model).experts, 256);
  const Shape matrix = parse_shape("1536x2048");
  ASSERT_TRUE(std::holds_alternative<MatrixShape>(matrix));
  EXPECT_EQ(std::get<MatrixShape>(matrix).out, 1536);
  EXPECT_EQ(std::get<MatrixShape>(matrix).in, 2048);
  EXPECT_EQ(parse_model("olmoe").top_k, 8);
}

TEST(ModelShape, OthersAreRefused) {
  for (const char* text :
       {"", "x", "8x", "x8", "8x8x8", "0x8", "-1x8", "8x1048577", "8 x8", "qwen"}) {
    EXPECT_THROW(parse_shape(text), InvalidArgument) << text;
  }
  EXPECT_THROW(parse_model("8x8"), InvalidArgument);
}

}  // namespace
}  // namespace trimtab::bench
