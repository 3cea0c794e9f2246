// SPDX-License-Identifier: Apache-2.0
// Results that are right pass, results that are wrong in any of the ways below do not.
#include "bench/experts/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/experts/expert_set.h"
#include "bench/experts/reference.h"
#include "bench/experts/routing.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

constexpr int64_t kHidden = 96, kIntermediate = 64;

void put(Rows rows, int64_t i, int64_t j, float value) {
  if (rows.dtype == DType::kF32) {
    rows.row_as<float>(i)[j] = value;
  } else {
    rows.row_as<bf16_t>(i)[j] = to_bf16(value);
  }
}

float get(Rows rows, int64_t i, int64_t j) {
  return rows.dtype == DType::kF32 ? rows.row_as<float>(i)[j] : to_float(rows.row_as<bf16_t>(i)[j]);
}

class VerifyTest : public testing::TestWithParam<const WeightDType*> {
 protected:
  Rows rows(int64_t count, int64_t cols, DType dtype) {
    memory_.push_back(Buffer(shape_bytes(dtype, count, cols)));
    return {memory_.back().data(), count, cols, cols, dtype};
  }
  Rows random_rows(int64_t count, int64_t cols) {
    const Rows x = rows(count, cols, GetParam()->rows);
    fill_random(x, 1.0, 5, team_);
    return x;
  }

  void run_gate_up(const Mlp& mlp, ConstRows x, Rows act) {
    const Buffer scratch(mlp.scratch_bytes(x.rows));
    mlp.gate_up(x, act, {scratch.data(), scratch.bytes()}, team_);
  }
  void run_down(const Mlp& mlp, ConstRows act, Rows y) {
    const Buffer scratch(mlp.scratch_bytes(act.rows));
    mlp.down(act, y, {scratch.data(), scratch.bytes()}, team_);
  }

  Team team_{1};
  ExpertSet set_{*GetParam(), kHidden, kIntermediate, 3, team_};
  std::vector<Buffer> memory_;
};

TEST_P(VerifyTest, Linear) {
  const WeightDType& dtype = *GetParam();
  const Rows x = random_rows(5, kIntermediate), y = rows(5, kHidden, DType::kF32);
  run_down(*set_.mlp(1), x, y);
  const auto verify = [&](int64_t operand) {
    verify_linear(dtype, set_.source(operand).down, x, y, "down");
  };
  EXPECT_NO_THROW(verify(1));
  EXPECT_THROW(verify(0), Error);  // another expert's weights
  for (const auto& [i, j] : {std::pair<int64_t, int64_t>{0, 0}, {4, kHidden - 1}}) {
    const float right = get(y, i, j);
    for (const float wrong :
         {right + 0.02F, -right, 0.0F, std::numeric_limits<float>::quiet_NaN()}) {
      put(y, i, j, wrong);
      EXPECT_THROW(verify(1), Error) << wrong;
    }
    put(y, i, j, right);
  }
  EXPECT_NO_THROW(verify(1));
}

TEST_P(VerifyTest, Gated) {
  const WeightDType& dtype = *GetParam();
  const Rows x = random_rows(7, kHidden), act = rows(7, kIntermediate, dtype.rows);
  run_gate_up(*set_.mlp(2), x, act);
  const auto verify = [&](const MlpSource& source) {
    verify_gated(dtype, source, x, act, "gate_up");
  };
  EXPECT_NO_THROW(verify(set_.source(2)));
  EXPECT_THROW(verify(set_.source(1)), Error);
  MlpSource swapped = set_.source(2);
  std::swap(swapped.gate, swapped.up);
  EXPECT_THROW(verify(swapped), Error);
  put(act, 6, kIntermediate - 1, get(act, 6, kIntermediate - 1) + 0.02F);
  EXPECT_THROW(verify(set_.source(2)), Error);
}

TEST_P(VerifyTest, Layer) {
  const WeightDType& dtype = *GetParam();
  constexpr int kTopK = 2;
  const Picks picks = route(RoutingKind::kNatural, 4, 3, kTopK, 9);
  const Rows x = random_rows(4, kHidden), act = rows(1, kIntermediate, dtype.rows),
             y = rows(1, kHidden, DType::kF32);
  const Rows out = rows(4, kHidden, DType::kF32);
  for (size_t pick = 0; pick < picks.ids.size(); ++pick) {
    const auto token = static_cast<int64_t>(pick / kTopK);
    run_gate_up(*set_.mlp(picks.ids[pick]), x.slice(token, 1), act);
    run_down(*set_.mlp(picks.ids[pick]), act, y);
    for (int64_t j = 0; j < kHidden; ++j)
      put(out, token, j, get(out, token, j) + picks.weights[pick] * get(y, 0, j));
  }
  const auto verify = [&](const Picks& used) {
    verify_layer(
        dtype, [&](int32_t id) { return set_.source(id); }, x, used.ids, used.weights, kTopK, out,
        "layer");
  };
  EXPECT_NO_THROW(verify(picks));
  Picks other = picks;
  std::swap(other.weights[0], other.weights[1]);
  EXPECT_THROW(verify(other), Error);
  other = picks;
  std::rotate(other.ids.begin(), other.ids.begin() + 1, other.ids.end());
  EXPECT_THROW(verify(other), Error);
  put(out, 3, 0, get(out, 3, 0) + 0.05F);
  EXPECT_THROW(verify(picks), Error);
}

TEST_P(VerifyTest, SaysWhereAndWhat) {
  const Rows x = random_rows(1, kIntermediate), y = rows(1, kHidden, DType::kF32);
  try {
    verify_linear(*GetParam(), set_.source(0).down, x, y, "down of nothing");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).substr(0, 50),
              "down of nothing is wrong: row 0, column 0 is 0, sh");
  }
}

std::vector<const WeightDType*> all_dtypes() {
  std::vector<const WeightDType*> all;
  for (const WeightDType& dtype : weight_dtypes()) all.push_back(&dtype);
  return all;
}

// "w4a16-g32" as GoogleTest takes it: letters, digits and underscores.
std::string test_name(const testing::TestParamInfo<const WeightDType*>& one) {
  std::string name(one.param->name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, VerifyTest, testing::ValuesIn(all_dtypes()), test_name);

TEST(Reference, ValuesAreThoseOfTheDefinition) {
  const WeightDType& dtype = find_weight_dtype("f32");
  const Uncertain x{{1, -2}, {0, 0}};
  const double w[] = {3, 0.5}, up[] = {-1, 1};
  EXPECT_DOUBLE_EQ(product(w, x).value, 2);
  EXPECT_DOUBLE_EQ(gated(dtype, w, up, x).value, 2 / (1 + std::exp(-2.0)) * -3);
  // An error of an input shows in the tolerance, as a multiple of its weight.
  EXPECT_NEAR(product(w, {{1, -2}, {0, 1e-3}}).tolerance, kSigmas * 0.5e-3, 1e-5);
}

TEST(ExpertSet, OperandsDiffer) {
  Team team(2);
  const ExpertSet set(find_weight_dtype("bf16"), kHidden, kIntermediate, 2, team);
  EXPECT_NE(set.source(0).gate.at(0, 0), set.source(1).gate.at(0, 0));
  EXPECT_NE(set.source(0).gate.at(0, 0), set.source(0).up.at(0, 0));
  double squares = 0;
  for (int64_t j = 0; j < kHidden; ++j)
    squares += std::pow(static_cast<double>(set.source(0).down.at(j, 7)), 2);
  EXPECT_NEAR(squares, 1.0, 0.5);
  EXPECT_EQ(cold_count(100, 1000), 10);
  EXPECT_EQ(cold_count(1e9, 1000), 2);
}

}  // namespace
}  // namespace trimtab::bench
