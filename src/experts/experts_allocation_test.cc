// SPDX-License-Identifier: Apache-2.0
// After warm-up the experts take nothing from the heap, on any thread of the process.
#include <gtest/gtest.h>

#include "base/allocation_count.h"
#include "base/cat.h"
#include "experts/test_grouped.h"

namespace trimtab::test {
namespace {

class ExpertsAllocationTest : public testing::TestWithParam<int> {
 protected:
  // Neither calls of operator new nor a team's scratch that grows, which does not come from there.
  template <class Body>
  void expect_none(const Body& body, const std::string& what) {
    body();
    std::vector<std::byte*> scratch;
    for (int m = 0; m < GetParam(); ++m) scratch.push_back(team_.scratch(m));
    const int64_t before = allocation_count();
    for (int i = 0; i < 10; ++i) body();
    EXPECT_EQ(allocation_count(), before) << what;
    for (int m = 0; m < GetParam(); ++m) EXPECT_EQ(team_.scratch(m), scratch[m]) << what;
  }
  Team team_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Threads, ExpertsAllocationTest, testing::Values(1, 3));

TEST_P(ExpertsAllocationTest, ARunMakesNone) {
  const std::vector<int32_t> counts = {90, 0, 3, 33};
  for (const WeightFormat format : kFormats) {
    const auto experts = make_grouped_experts(make_table(4, format, nullptr), kHidden, format);
    const TestRows x = random_rows(total(counts), format.rows());
    const TestRows out(total(counts), kHidden, DType::kF32);
    const Buffer scratch(experts->scratch_bytes(total(counts)));
    const Tokens tokens = {.x = x.view(), .weights = {}, .counts = counts};
    expect_none([&] { experts->run(tokens, out.view(), {scratch.data(), scratch.bytes()}, team_); },
                name(format));
  }
}

TEST_P(ExpertsAllocationTest, ALinearMakesNone) {
  std::mt19937 random(1);
  const TestMatrix weight = make_matrix(129, 71, DType::kBF16, Form::kDense, random);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const DType x_dtype : {DType::kF32, DType::kBF16}) {
      const Linear linear(weight.source, {}, dtype);
      TestRows x(200, 71, x_dtype), y(200, 129, DType::kF32);
      x.randomise(random);
      expect_none([&] { linear.run(x.view(), y.view(), team_); },
                  cat(name(dtype), " ", name(x_dtype)));
    }
  }
}

}  // namespace
}  // namespace trimtab::test
