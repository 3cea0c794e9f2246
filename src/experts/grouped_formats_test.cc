// SPDX-License-Identifier: Apache-2.0
// Rows that arrive quantised, and rows in blocks of fixed capacity.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "experts/test_grouped.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

constexpr int64_t kWholeBlocks = 96;  // hidden, for MX rows

class GroupedFormatsTest : public EachIsa {
 protected:
  // Experts and rows of one format; counts on both sides of the packed tiles, enough of them to be
  // worth a team's while.
  struct Scene {
    Scene(WeightFormat f, const GemmKernels* kernels, Format layout = Format::kStandard)
        : format(f),
          table(make_table(4, f, kernels, kWholeBlocks)),
          experts(make_grouped_experts(table, kWholeBlocks, f, layout)) {}
    WeightFormat format;
    Table table;
    std::unique_ptr<Experts> experts;
    std::vector<int32_t> counts = {3, 0, 90, 7};
  };
};

TRIMTAB_FOR_EACH_ISA(GroupedFormatsTest);

// M7: rows that arrive quantised are not quantised again.
TEST_P(GroupedFormatsTest, RowsThatArriveQuantisedGiveTheBitsOfRowsQuantisedHere) {
  for (const WeightFormat format : kFormats) {
    const DType dtype = format.quantized_rows();
    if (dtype == format.rows()) continue;
    const Scene scene(format, kernels());
    EXPECT_TRUE(scene.experts->accepts(dtype) && scene.experts->accepts(format.rows()));
    const TestRows x = random_rows(total(scene.counts), format.rows(), kWholeBlocks);
    const QuantisedRows q(x, dtype);
    const TestRows want = run(*scene.experts, x, scene.counts, 1);
    for (const int threads : {1, 3}) {
      const TestRows got =
          run(*scene.experts,
              {.x = q.q, .weights = {}, .counts = scene.counts, .scales = q.q_scales}, threads);
      for (int64_t i = 0; i < q.q.rows; ++i)
        ASSERT_EQ(got.row_bits(i), want.row_bits(i)) << name(format) << " " << i;
    }
  }
}

TEST_P(GroupedFormatsTest, ScalesOfRowsThatArriveQuantisedAreUsed) {
  const Scene scene(Scheme::kW8A8, kernels());
  const TestRows x = random_rows(total(scene.counts), DType::kBF16, kWholeBlocks);
  QuantisedRows q(x, DType::kI8);
  const Tokens tokens = {.x = q.q, .weights = {}, .counts = scene.counts, .scales = q.q_scales};
  const TestRows before = run(*scene.experts, tokens, 1);
  *q.q_scales.row_as<float>(5) *= 2;
  const TestRows after = run(*scene.experts, tokens, 1);
  for (int64_t i = 0; i < q.q.rows; ++i)
    EXPECT_EQ(before.row_bits(i) == after.row_bits(i), i != 5) << i;
}

// What is no number stays in its row, through whatever it is quantised to.
TEST_P(GroupedFormatsTest, NonFiniteRowsStayAlone) {
  for (const WeightFormat format : kFormats) {
    const Scene scene(format, kernels());
    TestRows x = random_rows(total(scene.counts), format.rows(), kWholeBlocks);
    const TestRows before = run(*scene.experts, x, scene.counts, 1);
    x.set(1, 40, std::numeric_limits<float>::quiet_NaN());
    x.set(20, 70, std::numeric_limits<float>::quiet_NaN());
    const TestRows after = run(*scene.experts, x, scene.counts, 1);
    for (int64_t i = 0; i < x.view().rows; ++i) {
      if (i == 1 || i == 20) {
        for (int64_t j = 0; j < kWholeBlocks; ++j)
          ASSERT_TRUE(std::isnan(after.at(i, j))) << name(format) << " " << i;
      } else {
        ASSERT_EQ(after.row_bits(i), before.row_bits(i)) << name(format) << " " << i;
      }
    }
  }
}

// Rows in the opposite order in memory, with gaps between them, and pointers to them: what
// Format::kIndirect brings.
class Scattered {
 public:
  explicit Scattered(const ConstRows& x) : all_(nullptr, x.rows, x.cols, x.cols, x.dtype) {
    const size_t stride = x.row_bytes() + 12;
    bytes_.assign(stride * static_cast<size_t>(x.rows), std::byte{0xff});
    for (int64_t i = 0; i < x.rows; ++i) {
      std::byte* const row = bytes_.data() + static_cast<size_t>(x.rows - 1 - i) * stride;
      std::memcpy(row, x.row(i), x.row_bytes());
      at_.push_back(row);
    }
  }
  ConstRows all() const { return all_; }
  std::span<const std::byte* const> at() const { return at_; }

 private:
  ConstRows all_;
  std::vector<std::byte> bytes_;
  std::vector<const std::byte*> at_;
};

TEST_P(GroupedFormatsTest, RowsWhereTheirSourcesHaveThemGiveTheBitsOfRowsSideBySide) {
  for (const WeightFormat format : kFormats) {
    const Scene scene(format, kernels()), indirect(format, kernels(), Format::kIndirect);
    EXPECT_EQ(indirect.experts->format(), Format::kIndirect);
    const TestRows x = random_rows(total(scene.counts), format.rows(), kWholeBlocks);
    const TestRows want = run(*scene.experts, x, scene.counts, 1);
    const auto expect_same = [&](const Tokens& tokens) {
      for (const int threads : {1, 3}) {
        const TestRows got = run(*indirect.experts, tokens, threads);
        for (int64_t i = 0; i < want.view().rows; ++i)
          ASSERT_EQ(got.row_bits(i), want.row_bits(i)) << name(format);
      }
    };
    const Scattered rows(x.view());
    Tokens tokens = {
        .format = Format::kIndirect, .x = rows.all(), .weights = {}, .counts = scene.counts};
    tokens.at = {rows.at(), {}};
    expect_same(tokens);
    const DType dtype = format.quantized_rows();
    if (dtype == format.rows()) continue;
    const QuantisedRows q(x, dtype);
    const Scattered codes(q.q), scales(q.q_scales);
    tokens.x = codes.all();
    tokens.scales = scales.all();
    tokens.at = {codes.at(), scales.at()};
    expect_same(tokens);
  }
}

TEST_P(GroupedFormatsTest, BlocksOfFixedCapacity) {
  constexpr int64_t kCapacity = 91;
  for (const WeightFormat format : kFormats) {
    const Scene scene(format, kernels(), Format::kBatched);
    EXPECT_EQ(scene.experts->format(), Format::kBatched);
    TestRows x(4 * kCapacity, kWholeBlocks, format.rows(), 2);  // NaN where there are no rows
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    for (size_t s = 0; s < 4; ++s) {
      for (int64_t i = 0; i < scene.counts[s]; ++i) {
        for (int64_t j = 0; j < kWholeBlocks; ++j)
          x.set(static_cast<int64_t>(s) * kCapacity + i, j, normal(random));
      }
    }
    const Tokens tokens = {.format = Format::kBatched,
                           .x = x.view(),
                           .weights = {},
                           .counts = scene.counts,
                           .capacity = kCapacity};
    for (const int threads : {1, 2}) {
      const TestRows out = run(*scene.experts, tokens, threads);
      expect_same_as_mlps(scene.table, x.view(), scene.counts, out,
                          [](size_t s) { return static_cast<int64_t>(s) * kCapacity; });
      for (int64_t i = 0; i < x.view().rows; ++i) {
        const bool used = i % kCapacity < scene.counts[i / kCapacity];
        EXPECT_EQ(std::isnan(out.at(i, 0)), !used)
            << "row " << i;  // rows that no expert has are left alone
      }
    }
  }
}

TEST(GroupedFormatsArgumentsTest, RefusesScalesThatDoNotFit) {
  const auto refusal = [](const Experts& experts, const Tokens& tokens) -> std::string {
    try {
      run(experts, tokens, 1);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  const std::vector<int32_t> counts = {2, 3};
  for (const auto& [scheme, dtype, wrong, text] :
       {std::tuple(Scheme::kW8A8, DType::kI8, DType::kF8E4M3,
                   "experts: scales must be F32 [5, 1], are "),
        std::tuple(Scheme::kMXFP8, DType::kF8E4M3, DType::kI8,
                   "experts: scales must be F8_E8M0 [5, 3], are ")}) {
    const auto experts =
        make_grouped_experts(make_table(2, scheme, nullptr, kWholeBlocks), kWholeBlocks, scheme);
    const TestRows x = random_rows(5, DType::kBF16, kWholeBlocks);
    const QuantisedRows q(x, dtype), other(x, wrong);
    Tokens tokens = {.x = q.q, .weights = {}, .counts = counts, .scales = q.q_scales};
    EXPECT_EQ(refusal(*experts, tokens), "");
    const auto refused = [&](const ConstRows& scales) {
      tokens.scales = scales;
      EXPECT_EQ(refusal(*experts, tokens).rfind(text, 0), 0U) << refusal(*experts, tokens);
    };
    refused({});
    refused(other.q_scales);
    refused(q.q_scales.slice(0, 4));
    refused(ConstRows(q.q_scales.data, 5, q.shape.cols + 1, q.shape.cols + 1, q.shape.dtype));
    tokens = {.x = other.q, .weights = {}, .counts = counts, .scales = other.q_scales};
    EXPECT_NE(refusal(*experts, tokens).find("x must be BF16"), std::string::npos);
  }
}

TEST(GroupedFormatsArgumentsTest, RefusesPointersThatDoNotFit) {
  const auto make = [](Format format) {
    return make_grouped_experts(make_table(1, Scheme::kW8A8, nullptr, kWholeBlocks), kWholeBlocks,
                                Scheme::kW8A8, format);
  };
  const auto experts = make(Format::kIndirect), side_by_side = make(Format::kStandard);
  const std::vector<int32_t> counts = {4};
  const QuantisedRows q(random_rows(4, DType::kBF16, kWholeBlocks), DType::kI8);
  const Scattered codes(q.q), scales(q.q_scales);
  Tokens good = {.format = Format::kIndirect,
                 .x = codes.all(),
                 .weights = {},
                 .counts = counts,
                 .scales = scales.all()};
  good.at = {codes.at(), scales.at()};
  EXPECT_NO_THROW(run(*experts, good, 1));
  EXPECT_THROW(run(*side_by_side, good, 1), InvalidArgument);
  const auto refused = [&](const RowPointers& at) {
    Tokens tokens = good;
    tokens.at = at;
    EXPECT_THROW(run(*experts, tokens, 1), InvalidArgument);
  };
  refused({});
  refused({codes.at().first(3), scales.at()});
  refused({codes.at(), scales.at().first(3)});
  refused({codes.at(), {}});
  const Tokens rows = {.x = q.q, .weights = {}, .counts = counts, .scales = q.q_scales};
  EXPECT_NO_THROW(run(*side_by_side, rows, 1));
  Tokens pointed = rows;
  pointed.at = good.at;
  EXPECT_THROW(run(*side_by_side, pointed, 1), InvalidArgument);
}

TEST(GroupedFormatsArgumentsTest, MxRowsNeedWholeBlocks) {
  const Scheme scheme = Scheme::kMXFP8;
  const auto experts = make_grouped_experts(make_table(1, scheme, nullptr), kHidden, scheme);
  ASSERT_NE(kHidden % kMxBlock, 0);
  EXPECT_TRUE(experts->accepts(DType::kBF16));
  EXPECT_FALSE(experts->accepts(DType::kF8E4M3));
  const std::vector<std::byte> codes(2 * kHidden), scales(2 * 2);
  const std::vector<int32_t> counts = {2};
  const Tokens tokens = {.x = {codes.data(), 2, kHidden, kHidden, DType::kF8E4M3},
                         .weights = {},
                         .counts = counts,
                         .scales = {scales.data(), 2, 2, 2, DType::kF8E8M0}};
  EXPECT_THROW(run(*experts, tokens, 1), InvalidArgument);
}

TEST(GroupedFormatsArgumentsTest, RefusesBlocksThatDoNotFit) {
  const auto experts = make_grouped_experts(make_table(2, DType::kF32, nullptr), kHidden,
                                            DType::kF32, Format::kBatched);
  const std::vector<int32_t> counts = {3, 1}, many = {4, 0};
  const TestRows x = random_rows(6, DType::kF32);
  const Tokens good = {
      .format = Format::kBatched, .x = x.view(), .weights = {}, .counts = counts, .capacity = 3};
  EXPECT_NO_THROW(run(*experts, good, 1));
  const auto refused = [&](const std::function<void(Tokens&)>& spoil) {
    Tokens tokens = good;
    spoil(tokens);
    EXPECT_THROW(run(*experts, tokens, 1), InvalidArgument);
  };
  refused([](Tokens& t) { t.format = Format::kStandard; });
  refused([](Tokens& t) { t.capacity = 2; });
  refused([](Tokens& t) { t.capacity = 4; });
  refused([&](Tokens& t) { t.counts = many; });
  refused([&](Tokens& t) { t.x = x.view().slice(0, 4); });
}

}  // namespace
}  // namespace trimtab::test
