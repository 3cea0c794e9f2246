// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/rows.h"
#include "experts/test_grouped.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

class GroupedExpertsTest : public EachIsa {};

TRIMTAB_FOR_EACH_ISA(GroupedExpertsTest);

// M10: no rows: no matrix product.
// M11: experts without rows are skipped.
TEST_P(GroupedExpertsTest, IsEachExpertAloneForAnyCountsAndTeam) {
  // The first two are worth a team's while.
  const std::vector<std::vector<int32_t>> cases = {{3, 0, 13, 1, 120}, {0, 0, 0, 0, 110},
                                                   {1, 1, 1, 1, 1},    {0, 1, 0, 0, 0},
                                                   {6, 6, 6, 6, 6},    {0, 0, 0, 0, 0}};
  for (const WeightFormat format : kFormats) {
    const Table table = make_table(5, format, kernels());
    const auto experts = make_grouped_experts(table, kHidden, format);
    for (const std::vector<int32_t>& counts : cases) {
      const TestRows x = random_rows(total(counts), format.rows());
      for (const int threads : {1, 2, 3})
        expect_same_as_mlps(table, x, counts, run(*experts, x, counts, threads));
    }
  }
}

// M8: a table of weights per slot: one expert can be replaced without touching the others.
TEST_P(GroupedExpertsTest, OneSlotCanBeReplacedAndTheOthersAreShared) {
  const std::vector<int32_t> counts = {4, 2, 5};
  for (const WeightFormat format : kFormats) {
    Table table = make_table(3, format, kernels());
    const auto before = make_grouped_experts(table, kHidden, format);
    const TestRows x = random_rows(total(counts), format.rows());
    const TestRows old_out = run(*before, x, counts, 1);
    table[1] = make_mlp(format, 999, kernels());
    const auto after = make_grouped_experts(table, kHidden, format);
    const TestRows new_out = run(*after, x, counts, 1);
    expect_same_as_mlps(table, x, counts, new_out);
    for (int64_t i = 0; i < total(counts); ++i) {
      EXPECT_EQ(old_out.row_bits(i) == new_out.row_bits(i), i < 4 || i >= 6)
          << name(format) << " row " << i;
    }
    // The old experts go on as they were.
    const TestRows again = run(*before, x, counts, 1);
    for (int64_t i = 0; i < total(counts); ++i) EXPECT_EQ(again.row_bits(i), old_out.row_bits(i));
  }
}

TEST_P(GroupedExpertsTest, AReplicaOfAnExpertMayShareItsWeights) {
  const auto mlp = make_mlp(DType::kF32, 1, kernels());
  const auto experts = make_grouped_experts({mlp, mlp}, kHidden, DType::kF32);
  const TestRows x = random_rows(6, DType::kF32);
  const std::vector<int32_t> counts = {2, 4};
  expect_same_as_mlps({mlp, mlp}, x, counts, run(*experts, x, counts, 1));
}

TEST_P(GroupedExpertsTest, LanesRunAtTheSameTime) {
  const std::vector<int32_t> counts = {40, 1, 60, 19};
  for (const WeightFormat format : kFormats) {
    const Table table = make_table(4, format, kernels());
    const auto experts = make_grouped_experts(table, kHidden, format);
    const TestRows x = random_rows(total(counts), format.rows());
    const auto lane = [&] {
      for (int i = 0; i < 2; ++i)
        expect_same_as_mlps(table, x, counts, run(*experts, x, counts, 2));
    };
    std::thread other(lane);
    lane();
    other.join();
  }
}

// M1: the router's weights inside the MLP, biases included.
TEST_P(GroupedExpertsTest, WeightsMultiplyTheOutputsInside) {
  for (const std::vector<int32_t>& counts :
       {std::vector<int32_t>{3, 0, 13, 1, 120}, {1, 1, 0, 0, 6}}) {
    const int64_t rows = total(counts);
    std::vector<float> weights;
    for (int64_t i = 0; i < rows; ++i) weights.push_back(0.37F * static_cast<float>(i % 7) - 0.5F);
    for (const WeightFormat format : kFormats) {
      const Table table = make_table(5, format, kernels());
      const auto plain = make_grouped_experts(table, kHidden, format);
      const auto weighing =
          make_grouped_experts(table, kHidden, format, Format::kStandard, Left::kSum);
      EXPECT_EQ(weighing->left(), Left::kSum);
      const TestRows x = random_rows(rows, format.rows());
      const TestRows wanted = run(*plain, x, counts, 1);
      for (const int threads : {1, 3}) {
        const TestRows out =
            run(*weighing, {.x = x.view(), .weights = weights, .counts = counts}, threads);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t h = 0; h < kHidden; ++h)
            ASSERT_EQ(out.at(i, h), weights[i] * wanted.at(i, h)) << name(format) << " row " << i;
        }
        EXPECT_TRUE(out.gaps_untouched());
      }
      EXPECT_THROW(run(*weighing, x, counts, 1), InvalidArgument);  // no weights
    }
  }
}

TEST_P(GroupedExpertsTest, ATokensPicksAreSummedInside) {
  // Rows by expert; token 2 has no pick here, token 1 one expert twice.
  const std::vector<int32_t> counts = {2, 0, 3}, rows_of_picks = {2, 0, 3, 4, -1, -1, -1, 1};
  const std::vector<float> weights = {0.5F, -0.25F, 1.5F, 0.75F, 2.0F};
  for (const WeightFormat format : kFormats) {
    const Table table = make_table(3, format, kernels());
    const TestRows x = random_rows(5, format.rows());
    const TestRows y = run(*make_grouped_experts(table, kHidden, format), x, counts, 1);
    const auto summing =
        make_grouped_experts(table, kHidden, format, Format::kStandard, Left::kNothing);
    Tokens tokens{.x = x.view(), .weights = weights, .counts = counts};
    tokens.picks = {rows_of_picks, 2};
    TestRows out(4, kHidden, DType::kF32, 1);
    const Buffer scratch(summing->scratch_bytes(5));
    Team team(2);
    const auto run_to = [&](Rows rows) {
      summing->run(tokens, rows, {scratch.data(), scratch.bytes()}, team);
    };
    run_to(out.view());
    for (int64_t h = 0; h < kHidden; ++h) {
      const auto weighed = [&](int64_t row) { return weights[row] * y.at(row, h); };
      ASSERT_EQ(out.at(0, h), weighed(2) + weighed(0)) << name(format);
      ASSERT_EQ(out.at(1, h), weighed(3) + weighed(4)) << name(format);
      ASSERT_EQ(out.at(2, h), 0.0F) << name(format);
      ASSERT_EQ(out.at(3, h), weighed(1)) << name(format);
    }
    EXPECT_TRUE(out.gaps_untouched());
    EXPECT_THROW(run_to(out.view().slice(0, 3)), InvalidArgument);
    tokens.picks = {};
    EXPECT_THROW(run_to(out.view()), InvalidArgument);
  }
  EXPECT_THROW(make_grouped_experts({}, kHidden, DType::kF32, Format::kBatched, Left::kNothing),
               InvalidArgument);
}

// A rank that none of its peers' tokens have picked gives sums of nothing.
TEST(GroupedExpertsArgumentsTest, TokensWithoutPicksHereGetZeros) {
  const auto summing =
      make_grouped_experts({}, kHidden, DType::kF32, Format::kStandard, Left::kNothing);
  const std::vector<int32_t> rows_of_picks(6, -1);
  Tokens tokens;
  tokens.picks = {rows_of_picks, 3};
  TestRows out(2, kHidden, DType::kF32);
  Team team(1);
  summing->run(tokens, out.view(), {}, team);
  for (int64_t h = 0; h < kHidden; ++h) ASSERT_EQ(out.at(0, h) + out.at(1, h), 0.0F);
}

TEST(GroupedExpertsArgumentsTest, ARankMayHaveNoExperts) {
  const auto experts = make_grouped_experts({}, kHidden, DType::kBF16);
  EXPECT_EQ(experts->num_local(), 0);
  EXPECT_EQ(experts->hidden(), kHidden);
  EXPECT_EQ(experts->dtype(), DType::kBF16);
  EXPECT_EQ(experts->scratch_bytes(0), 0U);
  Team team(1);
  EXPECT_NO_THROW(experts->run({}, {}, {}, team));
  const TestRows x = random_rows(1, DType::kBF16);
  const TestRows out(1, kHidden, DType::kF32);
  EXPECT_THROW(experts->run({.x = x.view(), .weights = {}, .counts = {}}, out.view(), {}, team),
               InvalidArgument);
}

// M12: large batches in chunks of rows, which may end within an expert: scratch stops growing, and
//     each row has the bits that it has alone.
TEST(GroupedExpertsChunksTest, ManyRowsTakeTheScratchOfAChunk) {
  const std::vector<int32_t> counts = {3, 9000, 0, 8192, 400, 17000};
  for (const WeightFormat format : {WeightFormat(DType::kBF16), parse_weight_format("w8a8")}) {
    const Table table = make_table(static_cast<int>(counts.size()), format, nullptr);
    const TestRows x = random_rows(total(counts), format.rows());
    const auto experts = make_grouped_experts(table, kHidden, format);
    EXPECT_EQ(experts->scratch_bytes(x.view().rows), experts->scratch_bytes(10'000));
    expect_same_as_mlps(table, x, counts, run(*experts, x, counts, 2));

    const auto following = make_grouped_experts(table, kHidden, format, Format::kIndirect);
    std::vector<const std::byte*> at;
    for (int64_t i = 0; i < x.view().rows; ++i) at.push_back(x.view().row(i));
    const Tokens tokens{.format = Format::kIndirect,
                        .x = ConstRows(nullptr, x.view().rows, kHidden, kHidden, format.rows()),
                        .weights = {},
                        .counts = counts,
                        .at = {at, {}}};
    expect_same_as_mlps(table, x, counts, run(*following, tokens, 2));
  }
}

// M12: intermediate results in caller's scratch of a known size; large batches in chunks of rows.
// K6: experts state theirs: format, element type, scratch, what they leave to the combine.
TEST(GroupedExpertsArgumentsTest, TellsItsFormat) {
  const auto experts =
      make_grouped_experts(make_table(3, DType::kF32, nullptr), kHidden, DType::kF32);
  EXPECT_EQ(experts->format(), Format::kStandard);
  EXPECT_EQ(experts->left(), Left::kWeightAndSum);
  EXPECT_EQ(experts->num_local(), 3);
  // At least the activations and the prepared rows of both halves.
  EXPECT_GE(experts->scratch_bytes(10), 10U * (2 * kIntermediate + kHidden) * sizeof(float));
  const auto half =
      make_grouped_experts(make_table(3, DType::kBF16, nullptr), kHidden, DType::kBF16);
  EXPECT_LT(half->scratch_bytes(10), experts->scratch_bytes(10));
}

TEST(GroupedExpertsArgumentsTest, RefusesSlotsThatDiffer) {
  const auto good = make_mlp(DType::kF32, 1, nullptr);
  EXPECT_THROW(make_grouped_experts({good, nullptr}, kHidden, DType::kF32), InvalidArgument);
  EXPECT_THROW(make_grouped_experts({good}, kHidden + 1, DType::kF32), InvalidArgument);
  EXPECT_THROW(make_grouped_experts({good}, kHidden, DType::kBF16), InvalidArgument);
  EXPECT_THROW(make_grouped_experts({}, 0, DType::kF32), InvalidArgument);
  EXPECT_THROW(make_grouped_experts({}, 4, DType::kI8), InvalidArgument);
  EXPECT_THROW(
      make_grouped_experts({good, make_mlp(DType::kF32, 1, nullptr, kHidden, kIntermediate + 1)},
                           kHidden, DType::kF32),
      InvalidArgument);
  EXPECT_THROW(
      make_grouped_experts({good, make_mlp(DType::kBF16, 1, nullptr)}, kHidden, DType::kF32),
      InvalidArgument);
  if (available_kernels().size() > 1) {
    const auto best = make_mlp(DType::kF32, 1, available_kernels().back());
    const auto plain = make_mlp(DType::kF32, 1, available_kernels().front());
    EXPECT_THROW(make_grouped_experts({best, plain}, kHidden, DType::kF32), InvalidArgument);
  }
}

// One block of memory for rows and outputs, as Tokens::y has it.
TEST(GroupedExpertsMemoryTest, OutputsMayOverwriteRowsThatAreThrough) {
  const DType dtype = DType::kBF16;
  const auto experts = make_grouped_experts(make_table(11, dtype, nullptr), kHidden, dtype);
  ASSERT_TRUE(experts->overwrites_rows());
  // The largest would come first, if all were computed together, and overwrite the others' rows.
  std::vector<int32_t> counts(11, 60);
  counts.back() = kRowsAtOnce + 300;
  const TestRows x = random_rows(total(counts), dtype);
  const TestRows wanted = run(*experts, x, counts, 1);
  const size_t row = shape_bytes(dtype, kHidden);
  const size_t ahead = kRowsAtOnce * row, bytes = cells(total(counts), row);
  const Buffer block(2 * bytes + ahead), scratch(experts->scratch_bytes(total(counts)));
  const Rows out(block.as<float>(), total(counts), kHidden);
  Team team(3);
  for (const size_t too_early : {size_t{0}, row}) {
    const Rows rows(block.data() + bytes + ahead - too_early, total(counts), kHidden, kHidden,
                    dtype);
    ASSERT_TRUE(overlap(rows, out));
    convert_rows(x.view(), rows);
    const Tokens tokens{.x = rows, .weights = {}, .counts = counts};
    const auto run = [&] { experts->run(tokens, out, {scratch.data(), scratch.bytes()}, team); };
    if (too_early > 0) {
      EXPECT_THROW(run(), InvalidArgument);
      continue;
    }
    run();
    for (int64_t i = 0; i < out.rows; ++i) {
      ASSERT_EQ(std::memcmp(out.row(i), wanted.view().row(i), out.row_bytes()), 0) << "row " << i;
    }
  }
}

// M9: one form of row counts everywhere, nothing to convert; wrong counts are refused.
TEST(GroupedExpertsArgumentsTest, RefusesTokensThatDoNotFit) {
  const auto experts =
      make_grouped_experts(make_table(2, DType::kF32, nullptr), kHidden, DType::kF32);
  const std::vector<int32_t> counts = {3, 1}, three = {1, 1, 2}, negative = {5, -1}, many = {3, 2};
  const TestRows x = random_rows(4, DType::kF32), half = random_rows(4, DType::kBF16),
                 out(4, kHidden, DType::kF32);
  const TestRows wide(4, kHidden + 1, DType::kF32), half_out(4, kHidden, DType::kBF16);
  const Buffer scratch(experts->scratch_bytes(4) + 64);
  const std::span<std::byte> enough(scratch.data(), experts->scratch_bytes(4));
  Team team(1);
  const auto run = [&](const Tokens& tokens, Rows rows, std::span<std::byte> bytes) {
    experts->run(tokens, rows, bytes, team);
  };
  const Tokens good = {.x = x.view(), .weights = {}, .counts = counts};
  EXPECT_NO_THROW(run(good, out.view(), enough));
  Tokens bad = good;
  bad.format = Format::kBatched;
  EXPECT_THROW(run(bad, out.view(), enough), InvalidArgument);
  for (const auto* wrong : {&three, &negative, &many}) {
    bad = good;
    bad.counts = *wrong;
    EXPECT_THROW(run(bad, out.view(), enough), InvalidArgument);
  }
  bad = good;
  bad.x = half.view();
  EXPECT_THROW(run(bad, out.view(), enough), InvalidArgument);
  bad.x = wide.view();
  EXPECT_THROW(run(bad, out.view(), enough), InvalidArgument);
  EXPECT_THROW(run(good, out.view().slice(0, 3), enough), InvalidArgument);
  EXPECT_THROW(run(good, half_out.view(), enough), InvalidArgument);
  EXPECT_THROW(run(good, wide.view(), enough), InvalidArgument);
  EXPECT_THROW(run(good, out.view(), enough.first(enough.size() - 1)), InvalidArgument);
  EXPECT_THROW(run(good, out.view(), {scratch.data() + 4, enough.size()}), InvalidArgument);
}

}  // namespace
}  // namespace trimtab::test
