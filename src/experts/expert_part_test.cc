// SPDX-License-Identifier: Apache-2.0
#include "trimtab/expert_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "experts/test_quantised.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Every element of every part is that of the whole, for sources of all types, blocks and zero
// points.
TEST(ExpertParts, HaveTheElementsOfTheWhole) {
  std::mt19937 random(3);
  constexpr int64_t kHidden = 64, kInner = 96, kParts = 3, kPart = kInner / kParts;
  struct Form {
    DType dtype, scales;
    int64_t block_rows, block_cols;
    bool zeros;
  };
  for (const Form& form :
       {Form{DType::kI8, DType::kF32, 1, 1000, false}, Form{DType::kU4, DType::kBF16, 1, 32, true},
        Form{DType::kU4, DType::kF16, 1, 16, false},
        Form{DType::kF8E4M3, DType::kF32, 32, 32, false},
        Form{DType::kU8, DType::kF32, 1, 32, true},
        Form{DType::kF4, DType::kF8E8M0, 1, 32, false}}) {
    const auto made = [&](int64_t rows, int64_t cols) {
      return test::Quantised(rows, cols, form.block_rows, std::min(form.block_cols, cols),
                             form.dtype, form.scales, form.zeros, random);
    };
    const test::Quantised gate = made(kInner, kHidden), up = made(kInner, kHidden),
                          down = made(kHidden, kInner);
    const MlpSource whole{gate.source, up.source, down.source, {}, {}, {}};
    for (int part = 0; part < kParts; ++part) {
      SCOPED_TRACE(std::string(name(form.dtype)) + ", part " + std::to_string(part));
      MlpSource cut;
      try {
        cut = part_of(whole, part, kParts, Scheme::kF32);
      } catch (const InvalidArgument& error) {
        // Rows of 4-bit elements with a gap of three may begin within a byte.
        ADD_FAILURE() << error.what();
        continue;
      }
      const int64_t first = part * kPart;
      ASSERT_EQ(cut.gate.rows, kPart);
      ASSERT_EQ(cut.down.cols, kPart);
      for (int64_t i = 0; i < kPart; ++i) {
        for (int64_t h = 0; h < kHidden; ++h) {
          ASSERT_EQ(cut.gate.at(i, h), whole.gate.at(first + i, h)) << i << ", " << h;
          ASSERT_EQ(cut.up.at(i, h), whole.up.at(first + i, h)) << i << ", " << h;
          ASSERT_EQ(cut.down.at(h, i), whole.down.at(h, first + i)) << i << ", " << h;
        }
      }
    }
  }
}

TEST(ExpertParts, BiasesGoWithTheirRowsAndThatOfDownOnce) {
  const std::vector<float> values(64 * 6, 1.0F), bias{0, 1, 2, 3, 4, 5};
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  const VectorSource of_rows{reinterpret_cast<const std::byte*>(bias.data()), DType::kF32, 6, 1};
  const MlpSource whole{{bytes, DType::kF32, 6, 64, 64, 1},
                        {bytes, DType::kF32, 6, 64, 64, 1},
                        {bytes, DType::kF32, 64, 6, 6, 1},
                        of_rows,
                        of_rows,
                        of_rows};
  for (int part = 0; part < 3; ++part) {
    const MlpSource cut = part_of(whole, part, 3, Scheme::kF32);
    EXPECT_EQ(cut.gate_bias.at(1), 2.0F * static_cast<float>(part) + 1.0F);
    EXPECT_EQ(cut.up_bias.size, 2);
    EXPECT_EQ(cut.down_bias.data != nullptr, part == 0);
  }
}

TEST(ExpertParts, RefuseCutsThroughGroups) {
  const std::vector<float> values(64 * 96, 1.0F);
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  const MlpSource whole{{bytes, DType::kF32, 96, 64, 64, 1},
                        {bytes, DType::kF32, 96, 64, 64, 1},
                        {bytes, DType::kF32, 64, 96, 96, 1},
                        {},
                        {},
                        {}};
  EXPECT_NO_THROW(part_of(whole, 1, 3, Scheme::kMXFP8));
  EXPECT_NO_THROW(part_of(whole, 1, 2, Scheme::kW8A8));
  for (const auto& [parts, format] : {std::pair<int, WeightFormat>{2, Scheme::kMXFP8},
                                      {3, Scheme::kFP8},
                                      {3, Scheme::kW4A16},
                                      {7, Scheme::kF32},
                                      {4, {Scheme::kW4A8, 32}}}) {
    try {
      part_of(whole, 0, parts, format);
      ADD_FAILURE() << parts << " parts in " << name(format);
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("size 96"), std::string::npos) << text;
      EXPECT_NE(text.find(std::to_string(parts) + " parts"), std::string::npos) << text;
    }
  }
  EXPECT_THROW(part_of(whole, 3, 3, Scheme::kF32), InvalidArgument);
  MlpSource ordered = whole;
  ordered.down.quantization.column_blocks = bytes;
  EXPECT_THROW(part_of(ordered, 0, 2, Scheme::kF32), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
